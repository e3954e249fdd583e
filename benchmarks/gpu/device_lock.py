"""Lock of the device among processes of a flight, for what is timed while others run."""

import fcntl
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Variable with the path of the lock.
LOCK = "FLIGHT_DEVICE_LOCK"
_HELD = threading.local()


@contextmanager
def device() -> Iterator[None]:
    """Hold the device; a thread that holds it may enter again."""
    path, depth = os.environ.get(LOCK), getattr(_HELD, "depth", 0)
    if path is None or depth:
        yield
        return
    with Path(path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _HELD.depth = depth + 1
        try:
            yield
        finally:
            _HELD.depth = depth


def lock_benchmarks() -> bool:
    """Let Inductor hold the device while it times; return False if it has no such functions."""
    try:
        from torch._inductor.runtime import benchmarking
    except ImportError:
        return False
    is_locked = False
    for name in ("Benchmarker", "TritonBenchmarker", "InductorBenchmarker"):
        owner = getattr(benchmarking, name, None)
        for method in ("benchmark_gpu", "benchmark_gpu_with_cuda_graph"):
            if owner is not None and method in vars(owner):
                setattr(owner, method, _locked(getattr(owner, method)))
                is_locked = True
    return is_locked


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def locked(*words: Any, **options: Any) -> Any:
        with device():
            return method(*words, **options)

    return locked

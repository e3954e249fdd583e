"""Worker processes of this machine, by the part they play.

Whatever loads a whole network runs in a process of its own that ends with it, so that no
lasting worker holds a network's weights.
"""

import os
from collections.abc import Mapping
from dataclasses import replace

from tuner.settings import Settings
from tuner.workers.pool import Pool, WorkerSettings
from tuner.workers.split_env_pool import SplitEnvPool


def builder_pool(settings: Settings, n_workers: int) -> Pool:
    """Start processes that search, build and train, each on one core."""
    return _pool(settings, n_workers, "builder", n_threads=1)


def compiler_pool(settings: Settings, n_workers: int) -> Pool:
    """Start processes that compile subgraphs, each on one core."""
    return _pool(settings, n_workers, "compiler", n_threads=1)


def fresh_worker(
    settings: Settings,
    name: str = "network",
    *,
    max_bytes: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Pool:
    """Start one process that may use every core: to time, or to load or compile a network.

    Where the engine has an environment of its own, there are two: one for it, and one for what
    is no engine's, each started when it is needed.
    """
    n_threads = len(os.sched_getaffinity(0))
    return _pool(settings, 1, name, n_threads=n_threads, max_bytes=max_bytes, environ=environ)


def _pool(
    settings: Settings,
    n_workers: int,
    name: str,
    *,
    n_threads: int,
    max_bytes: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Pool:
    threads = {"TVM_NUM_THREADS": str(n_threads), "OMP_NUM_THREADS": str(n_threads)}
    engines = WorkerSettings(
        n_workers=n_workers,
        log=settings.data_dir / "logs" / f"{name}.log",
        environ={**threads, **(environ or {})},
        max_bytes=max_bytes,
        interpreter=settings.interpreter,
    )
    if engines.interpreter is None:
        return Pool(engines)
    return SplitEnvPool(engines, replace(engines, interpreter=None))

"""Step of the flight: libraries of the corpus compute what ONNX Runtime does, in few processes.

    python -m benchmarks.gpu.agreement FOLDER RESULTS [--device cpu] [--secs 60]

A process loads and runs libraries that it reads from its standard input; one that crashes, or takes
too long, costs the library at hand alone.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.device_lock import device

DESCRIBED, EXPECTED, SUFFIX = "described.json", "expected.npz", ".tar.xz"
_N_PROCESSES, _N_RUNS, _N_REPLAYS, _N_SAMPLES = 8, 3, 20, 4096
_LIBRARY_SECS = 60.0
_MAX_TRACEBACK = 3000


@dataclass(frozen=True)
class Drawn:
    """Shape and values of an input that is drawn.

    Attributes:
        dtype: Its dtype, as NumPy names it.
        below: Limit of whole numbers, exclusive.
        value: Value of all elements; None draws them.
    """

    shape: tuple[int, ...]
    dtype: str
    below: int
    value: float | None = None

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Draw the input with this name; the same name has the same numbers."""
        if self.value is not None:
            return np.full(self.shape, self.value, self.dtype)
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if np.issubdtype(self.dtype, np.floating):
            return rng.standard_normal(self.shape, np.float32).astype(self.dtype)
        return rng.integers(0, self.below, self.shape).astype(self.dtype)


def positions_of(size: int) -> np.ndarray[Any, Any]:
    """Return the positions at which a flat output of this size is compared."""
    if size <= _N_SAMPLES:
        return np.arange(size)
    drawn = np.random.default_rng(size).integers(0, size, _N_SAMPLES - 1)
    return np.append(drawn, size - 1)


def main() -> None:
    """Run the libraries of the command line; results are written after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    if arguments.results is None:
        _serve(arguments.folder, arguments.device)
        return
    names: queue.SimpleQueue[str] = queue.SimpleQueue()
    for folder in sorted(arguments.folder.iterdir()):
        names.put(folder.name)
    facts: dict[str, Any] = {}
    lock = threading.Lock()

    def work() -> None:
        process = None
        while True:
            try:
                name = names.get_nowait()
            except queue.Empty:
                break
            if process is None:
                process = _start(arguments.folder, arguments.device)
            answer = _ask(process, name)
            if "error" in answer:
                process.kill()
                process = None
            with lock:
                facts[name] = answer
                arguments.results.write_text(json.dumps(facts))
        if process is not None:
            process.kill()

    threads = [threading.Thread(target=work) for _ in range(_N_PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _start(folder: Path, kind: str) -> subprocess.Popen[str]:
    words = ["-m", "benchmarks.gpu.agreement", str(folder), "--device", kind]
    # This package replaces the variable.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, *words], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def _ask(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """Return the answer of a process; it is killed if that takes too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    timer = threading.Timer(_LIBRARY_SECS, process.kill)
    timer.start()
    try:
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
    except (OSError, ValueError):
        return {"error": f"the process ended with exit status {process.wait()}"}
    finally:
        timer.cancel()
    return answer


def _serve(root: Path, kind: str) -> None:
    """Answer names of libraries by lines of JSON."""
    # Compilers and drivers may print.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        begun = time.perf_counter()
        try:
            answer = _compare(root / line.strip(), is_compared=kind == "cuda")
        except Exception as error:
            answer = {"error": "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:]}
        answers.write(json.dumps({**answer, "secs": time.perf_counter() - begun}) + "\n")
        answers.flush()


def _compare(folder: Path, *, is_compared: bool) -> dict[str, Any]:
    """Run a library, and compare its outputs with the expected ones."""
    from tuner.library.loading import load

    described = json.loads((folder / DESCRIBED).read_text())
    drawn = {name: Drawn(**each).array(name) for name, each in described["inputs"].items()}
    library = load(folder / f"{folder.name}.lib")
    given = {name: drawn[name] for name in library.inputs}
    with device():
        runs = [library(given) for _ in range(_N_RUNS + _N_REPLAYS)]
    last, names = runs[-1], tuple(library.outputs)
    n_equal = sum(
        all(np.asarray(run[name]).tobytes() == np.asarray(last[name]).tobytes() for name in names)
        for run in runs[_N_RUNS:]
    )
    answer: dict[str, Any] = {"float16_error": described["float16_error"], "equal_replays": n_equal}
    if not is_compared:
        return answer
    errors = {}
    with np.load(folder / EXPECTED) as expected:
        for key, (name, shape) in described["outputs"].items():
            output = np.asarray(last[names[int(key)]])
            if list(output.shape) != shape:
                raise ValueError(f"{name} has the shape {output.shape} instead of {shape}")
            reference = expected[key].astype(float)
            gap = output.ravel()[positions_of(output.size)].astype(float) - reference
            errors[name] = float(np.linalg.norm(gap) / np.linalg.norm(reference))
    worst = max(errors, key=lambda name: (np.isnan(errors[name]), errors[name]))
    return {**answer, "error_of_norm": errors[worst], "worst_output": worst}


if __name__ == "__main__":
    main()

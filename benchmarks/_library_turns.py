"""Process that times a library in turns, with the tuner of whichever checkout is on its path.

    python -P benchmarks/_library_turns.py LIBRARY

Reads a number of runs a line, and answers each with a line of their seconds. Inputs are drawn:
floats in [0, 1), whole numbers 0 or 1, which index everything.
"""

import json
import sys
import time
from typing import Any

import numpy as np

import tuner


def main(folder: str) -> None:
    """Answer every line of standard input."""
    network = tuner.load(folder)
    rng = np.random.default_rng(0)
    arrays = {name: _draw(rng, *given) for name, given in network.inputs.items()}
    for line in sys.stdin:
        print(json.dumps([_time(network, arrays) for _ in range(int(line))]), flush=True)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    if np.dtype(dtype).kind == "f":
        return rng.random(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _time(network: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> float:
    started = time.perf_counter()
    network(arrays)
    return time.perf_counter() - started


if __name__ == "__main__":
    main(sys.argv[1])

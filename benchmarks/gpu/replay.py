"""Run a library a few times without torch: python -m benchmarks.gpu.replay LIBRARY."""

import sys
from pathlib import Path

import numpy as np

from tuner.library.loading import load

_N_RUNS = 3


def main() -> None:
    """Run the library of the command line on zeros and ones."""
    library = load(Path(sys.argv[1]))
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.integers(0, 2, shape).astype(dtype)
        for name, (shape, dtype) in library.inputs.items()
    }
    for _ in range(_N_RUNS):
        library(arrays)


if __name__ == "__main__":
    main()

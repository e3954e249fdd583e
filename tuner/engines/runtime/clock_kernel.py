"""Clock kernel: a product on all cores that is timed beside every sample to see the device drift.

It loads the vector units of every core as tuned kernels do: a scalar loop on one core does not slow
down when they do. Its operands stay in the first cache of each core, so that its time follows the
clock alone and not other users of the caches, and is short enough to see bursts of less than a
millisecond, see docs/decisions/0003.
``target.clock_secs`` holds its first time: another kernel needs a migration that clears it.
"""

from typing import Any

import numpy as np

from tuner.devices.cpu_caches import n_cores

# A register tile of 4 x 32 sums of 64 terms reads 9 KB, and is computed again 400 times.
_N_ROWS = 4
_N_LANES = 32
_N_TERMS = 64
_N_TURNS = 400
#: Name of this kernel; stored times of a kernel of another name do not count.
NAME = f"{_N_ROWS}x{_N_LANES}x{_N_TERMS}, {_N_TURNS} times"


def define(te: Any) -> list[Any]:
    """Return the operands and the sums by core, row and lane, for an engine to schedule.

    Args:
        te: Module ``tvm.te`` of the engine.
    """
    rows, terms, sums = (array.shape for array in arguments())
    a = te.placeholder(rows, name="a")
    b = te.placeholder(terms, name="b")
    turn = te.reduce_axis((0, _N_TURNS), name="turn")
    k = te.reduce_axis((0, _N_TERMS), name="k")
    c = te.compute(
        sums,
        lambda core, i, j: te.sum(a[core, i, k] * b[core, k, j], axis=[turn, k]),
        name="c",
    )
    return [a, b, c]


def arguments() -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Return seeded operands, and zeros that the sums replace."""
    generator = np.random.default_rng(0)
    return [
        generator.random((n_cores(), _N_ROWS, _N_TERMS), dtype=np.float32),
        generator.random((n_cores(), _N_TERMS, _N_LANES), dtype=np.float32),
        np.zeros((n_cores(), _N_ROWS, _N_LANES), np.float32),
    ]

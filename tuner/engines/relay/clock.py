"""Clock kernel: a product on all cores that is timed beside candidates to see the device drift.

It loads the vector units of every core as tuned kernels do: a scalar loop on one core does not slow
down when they do. Its operands stay in the first cache of each core, so that its time follows the
clock alone and not other users of the caches, see docs/decisions/0036 and 0083.
``target.clock_secs`` holds its first time: another kernel needs a migration that clears it.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import te

from tuner.devices.cpu_caches import n_cores
from tuner.engines import timing
from tuner.engines.clock_readings import ClockReadings
from tuner.engines.relay.targets import make_target
from tuner.engines.timing import Sample, SampleHook

# A register tile of 4 x 32 sums of 64 terms reads 9 KB, and is computed again 3,200 times.
_N_ROWS = 4
_N_LANES = 32
_N_TERMS = 64
_N_TURNS = 3200
_LOG = logging.getLogger(__name__)
_HOOK = "tuner.before_clock"
_READINGS = ClockReadings()


def clock_secs(target: str) -> float | None:
    """Return the time of the clock kernel now, seconds; None if it fails or stays disturbed."""
    try:
        module, arguments = _load(target)
    except Exception:  # no candidate fails for want of a clock
        _LOG.exception("the clock kernel cannot be built for %s", target)
        return None

    def take(repeat: int) -> Sequence[Sample]:
        hook = SampleHook(lambda: None)
        tvm._ffi.register_func(_HOOK, hook.__call__, override=True)
        evaluator = module.time_evaluator(
            "main", tvm.cpu(), repeat=repeat, f_preproc=_HOOK, number=1
        )
        return hook.samples(evaluator(*arguments).results, timing.CLOCK_SETTINGS)

    return _READINGS.read(lambda: timing.read_clock(take))


@lru_cache(maxsize=1)
def _load(target: str) -> tuple[Any, list[Any]]:
    """Build the kernel once in a process; return it and its arguments."""
    schedule, tensors = _schedule()
    module = tvm.build(schedule, tensors, target=make_target(target), name="main")
    generator = np.random.default_rng(0)
    rows, terms = (
        tvm.nd.array(generator.random(shape, dtype=np.float32))
        for shape in ((n_cores(), _N_ROWS, _N_TERMS), (n_cores(), _N_TERMS, _N_LANES))
    )
    return module, [rows, terms, tvm.nd.empty((n_cores(), _N_ROWS, _N_LANES), "float32")]


def _schedule() -> tuple[Any, list[Any]]:
    a = te.placeholder((n_cores(), _N_ROWS, _N_TERMS), name="a")
    b = te.placeholder((n_cores(), _N_TERMS, _N_LANES), name="b")
    turn = te.reduce_axis((0, _N_TURNS), name="turn")
    k = te.reduce_axis((0, _N_TERMS), name="k")
    c = te.compute(
        (n_cores(), _N_ROWS, _N_LANES),
        lambda core, i, j: te.sum(a[core, i, k] * b[core, k, j], axis=[turn, k]),
        name="c",
    )
    schedule = te.create_schedule(c.op)
    core, i, j = c.op.axis
    schedule[c].reorder(core, turn, k, i, j)
    schedule[c].parallel(core)
    schedule[c].unroll(i)
    schedule[c].vectorize(j)
    return schedule, [a, b, c]

"""Times of the clock kernel in this process."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import tvm
from tvm import te

from tuner.engines import clock_kernel, timing
from tuner.engines.clock_readings import ClockReadings
from tuner.engines.relay.targets import make_target
from tuner.engines.timing import Sample, SampleHook

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
    return module, [tvm.nd.array(array) for array in clock_kernel.arguments()]


def _schedule() -> tuple[Any, list[Any]]:
    tensors = clock_kernel.define(te)
    c = tensors[-1]
    turn, k = c.op.reduce_axis
    schedule = te.create_schedule(c.op)
    core, i, j = c.op.axis
    schedule[c].reorder(core, turn, k, i, j)
    schedule[c].parallel(core)
    schedule[c].unroll(i)
    schedule[c].vectorize(j)
    return schedule, tensors

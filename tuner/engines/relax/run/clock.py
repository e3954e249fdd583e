"""Clock kernel of this process."""

import logging
from functools import lru_cache, partial

import tvm
from tvm import te

from tuner.engines.relax.target.targets import make_target
from tuner.engines.runtime import clock_kernel
from tuner.engines.runtime.clock_readings import ClockReadings

_LOG = logging.getLogger(__name__)


def clock_secs(target: str, period_secs: float) -> float | None:
    """Return the time of the clock kernel over periods of a length; see :class:`Engine`."""
    clock = readings(target)
    return None if clock is None else clock.average(period_secs)


@lru_cache(maxsize=1)
def readings(target: str) -> ClockReadings | None:
    """Return the clock for a target, built once in a process; None if that fails."""
    try:
        schedule = tvm.s_tir.Schedule(te.create_prim_func(clock_kernel.define(te)))
        block = schedule.get_sblock("c")
        core, i, j, turns, terms = schedule.get_loops(block)
        schedule.reorder(core, turns, terms, i, j)
        schedule.parallel(core)
        schedule.unroll(i)
        schedule.vectorize(j)
        schedule.decompose_reduction(block, turns)
        module = tvm.tirx.build(schedule.mod, target=make_target(target, intrinsics=False))
        arguments = [tvm.runtime.tensor(array) for array in clock_kernel.arguments()]
        return ClockReadings(partial(module["main"], *arguments))
    except Exception:  # no candidate fails for want of a clock
        _LOG.exception("the clock kernel cannot be built for %s", target)
        return None

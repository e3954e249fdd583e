"""Clock kernel of this process."""

import logging
from functools import lru_cache, partial
from typing import Any

import tvm
from tvm import te

from tuner.engines.relay.targets import make_target
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
        schedule, tensors = _schedule()
        module = tvm.build(schedule, tensors, target=make_target(target), name="main")
        arguments = [tvm.nd.array(array) for array in clock_kernel.arguments()]
        return ClockReadings(partial(module["main"], *arguments))
    except Exception:  # no candidate fails for want of a clock
        _LOG.exception("the clock kernel cannot be built for %s", target)
        return None


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

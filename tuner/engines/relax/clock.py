"""Times of the clock kernel in this process."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm import te

from tuner.engines import clock_kernel, timing
from tuner.engines.clock_readings import ClockReadings
from tuner.engines.relax.targets import make_target
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
        tvm_ffi.register_global_func(_HOOK, hook, override=True)
        evaluator = module.time_evaluator(
            "main", tvm.cpu(), repeat=repeat, f_preproc=_HOOK, number=1
        )
        return hook.samples(evaluator(*arguments).results, timing.CLOCK_SETTINGS)

    return _READINGS.read(lambda: timing.read_clock(take))


@lru_cache(maxsize=1)
def _load(target: str) -> tuple[Any, list[Any]]:
    """Build the kernel once in a process; return it and its arguments."""
    module = tvm.tirx.build(_schedule().mod, target=make_target(target, intrinsics=False))
    return module, [tvm.runtime.tensor(array) for array in clock_kernel.arguments()]


def _schedule() -> Any:
    schedule = tvm.s_tir.Schedule(te.create_prim_func(clock_kernel.define(te)))
    block = schedule.get_sblock("c")
    core, i, j, turns, terms = schedule.get_loops(block)
    schedule.reorder(core, turns, terms, i, j)
    schedule.parallel(core)
    schedule.unroll(i)
    schedule.vectorize(j)
    schedule.decompose_reduction(block, turns)
    return schedule

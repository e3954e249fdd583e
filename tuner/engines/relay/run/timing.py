"""Timing of a loaded kernel on the CPU of this machine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import tvm

from tuner.engines.base import EvaluatorSettings, RunRequest
from tuner.engines.relay.run import cache_operations
from tuner.engines.relay.run.clock import readings
from tuner.engines.runs import KERNEL
from tuner.engines.runtime import cache_state, timing
from tuner.engines.runtime.clock_readings import ClockReadings
from tuner.engines.runtime.timing import Sample, Sampled, SampleHook

if TYPE_CHECKING:
    from tuner.engines.relay.run.artifacts import Kernel

# Name under which the time evaluator looks up what precedes each sample.
_HOOK = "tuner.before_sample"


def sample(kernel: "Kernel", request: RunRequest) -> Sampled:
    """Sample a kernel in the cache state of its network."""
    settings = request.evaluator
    clock = readings(request.target)
    sampled = timing.sample(lambda repeat: take(kernel, settings, repeat, clock), request)
    return replace(sampled, conditions={**cache_state.describe(settings), **sampled.conditions})


def take(
    kernel: "Kernel", settings: EvaluatorSettings, repeat: int, clock: ClockReadings | None
) -> Sequence[Sample]:
    """Sample the run time of a kernel ``repeat`` times."""
    operations = cache_operations.operations() if settings.cache_flush else None
    restore = cache_state.restorer(operations, kernel.arguments_by_use, settings)
    hook = SampleHook(restore, clock)
    tvm._ffi.register_func(_HOOK, hook.__call__, override=True)
    evaluator = kernel.module.time_evaluator(
        KERNEL,
        tvm.cpu(),
        number=settings.number,
        repeat=repeat,
        min_repeat_ms=0 if settings.cache_flush else settings.min_repeat_ms,
        cooldown_interval_ms=settings.cooldown_ms,
        f_preproc=_HOOK,
    )
    secs = [float(one) for one in evaluator(*kernel.arguments, *kernel.outputs).results]
    return hook.samples(secs, settings)

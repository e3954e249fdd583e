"""Timing of a loaded kernel on its device."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tvm_ffi

from tuner.devices import gpus
from tuner.engines.base import EvaluatorSettings, RunRequest
from tuner.engines.relax.run.run_device import is_gpu
from tuner.engines.runs import KERNEL
from tuner.engines.runtime import timing
from tuner.engines.runtime.timing import Sample, Sampled

if TYPE_CHECKING:
    from tuner.engines.relax.run.artifacts import Kernel

# Name under which the time evaluator looks up what precedes each sample.
_HOOK = "tuner.before_sample"
# Attempts to sample a kernel on a throttled device, and seconds of rest between them.
_ATTEMPTS = 3
_REST_SECS = 1.0
_WARM_UP_MS = 10
# Least duration of a sample of steps in a row.
_STEPS_MS = 2


def sample(kernel: "Kernel", request: RunRequest) -> Sampled:
    """Sample a kernel; repeat, after a rest, samples that were taken while it was throttled.

    It repeats only while half of the evaluator's time-out is left; remaining throttled samples
    are returned with the reasons under ``throttled`` of their conditions.
    """
    settings, target = request.evaluator, kernel.target
    if kernel.is_step:
        # The step before has just read the same weights, whatever the rest of the network does.
        min_repeat_ms = max(settings.min_repeat_ms, _STEPS_MS)
        settings = replace(settings, cache_flush=False, min_repeat_ms=min_repeat_ms)
        request = replace(request, evaluator=settings)
    if is_gpu(target):
        # The clocks of a GPU rise with load.
        take(kernel, EvaluatorSettings(cache_flush=False, min_repeat_ms=_WARM_UP_MS), 1)
    deadline = time.monotonic() + settings.timeout_secs / 2
    for attempt in range(1, _ATTEMPTS + 1):
        started = time.monotonic()
        before = kernel.run_device.conditions(target)
        sampled = timing.sample(lambda repeat: take(kernel, settings, repeat), request)
        conditions = gpus.merge_conditions(before, kernel.run_device.conditions(target))
        ended = time.monotonic()
        is_late = ended + _REST_SECS + (ended - started) > deadline
        if not conditions.get("throttled") or attempt == _ATTEMPTS or is_late:
            break
        time.sleep(_REST_SECS)
    state = kernel.run_device.cache_state(target, settings)
    if kernel.is_step:
        state = {"weights": "step before"}
    return replace(sampled, conditions={**conditions, **state, **sampled.conditions})


def take(kernel: "Kernel", settings: EvaluatorSettings, repeat: int) -> Sequence[Sample]:
    """Sample the run time of a kernel ``repeat`` times."""
    options: dict[str, Any] = {}
    hook = kernel.run_device.sample_hook(kernel.target, kernel.arguments_by_use, settings)
    if hook is not None:
        tvm_ffi.register_global_func(_HOOK, hook, override=True)
        options["f_preproc"] = _HOOK
    elif settings.cache_flush:
        options["cache_flush_bytes"] = kernel.run_device.flush_bytes(kernel.target, settings)
    evaluator = kernel.module.time_evaluator(
        KERNEL,
        kernel.device,
        number=settings.number,
        repeat=repeat,
        min_repeat_ms=0 if settings.cache_flush else settings.min_repeat_ms,
        cooldown_interval_ms=settings.cooldown_ms,
        **options,
    )
    secs = [float(one) for one in evaluator(*kernel.arguments, *kernel.outputs).results]
    if hook is None:
        return [Sample(one) for one in secs]
    return hook.samples(secs, settings)

"""Execution of artifacts: comparison of the outputs, then timing, then comparison again."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from tuner.devices import gpus
from tuner.engines import runs
from tuner.engines.base import EvaluatorSettings, RunRequest, RunResult
from tuner.engines.relax.codegen import build as artifacts
from tuner.engines.relax.run.graph_timer import GraphTimer
from tuner.engines.relax.run.run_device import LOCAL, RunDevice, is_gpu
from tuner.engines.runs import KERNEL, LoadedKernel
from tuner.engines.runtime import onednn, timing
from tuner.engines.runtime.timing import Sample, Sampled, TakeSamples
from tuner.engines.verification.checks import Array
from tuner.errors import RequestError

# Name under which the time evaluator looks up what precedes each sample.
_HOOK = "tuner.before_sample"
# Attempts to sample a kernel on a throttled device, and seconds of rest between them.
_ATTEMPTS = 3
_REST_SECS = 1.0
_WARM_UP_MS = 10
# Least duration of a sample of steps in a row.
_STEPS_MS = 2


@dataclass(kw_only=True)
class Kernel(LoadedKernel):
    """A loaded artifact and its arguments on the device.

    Attributes:
        is_step: True for the step of a loop, which runs again and again on the same weights.
    """

    device: Any
    target: str
    run_device: RunDevice
    is_step: bool = False

    def bind(self, arrays: Sequence[Array]) -> None:
        """Copy inputs to the device, packed as the kernel expects them."""
        self.arguments = [tvm.runtime.tensor(array, self.device) for array in arrays]
        if not self.packed:
            return
        after = [tvm.runtime.empty(e["shape"], e["dtype"], self.device) for e in self.packed]
        before = [self.arguments[entry["index"]] for entry in self.packed]
        self.module[artifacts.PACK](*before, *after)
        for entry, tensor in zip(self.packed, after, strict=True):
            self.arguments[entry["index"]] = tensor


def run(request: RunRequest, run_device: RunDevice = LOCAL) -> RunResult:
    """Compare and time one artifact; see :class:`Engine`."""
    guard = _checking_device(run_device, request.target)
    return runs.run(_loader(run_device), request, _sample, guard)


def run_interleaved(
    requests: list[RunRequest], n_turns: int, run_device: RunDevice = LOCAL
) -> list[RunResult]:
    """Time artifacts in turns; see :class:`Engine`."""
    with _checking_device(run_device, requests[0].target if requests else "{}"):
        return runs.run_interleaved(_loader(run_device), requests, _sample, n_turns)


def _loader(run_device: RunDevice) -> Callable[[RunRequest], Kernel]:
    return lambda request: load_kernel(request.artifact, request.target, run_device)


@contextmanager
def _checking_device(run_device: RunDevice, target: str) -> Iterator[None]:
    """Check the device after a failure on it."""
    try:
        yield
    except (OSError, RequestError):
        raise
    except Exception as error:
        run_device.check_after(target, error)
        raise


def load_kernel(artifact: str, target: str, run_device: RunDevice = LOCAL) -> Kernel:
    """Load an artifact on its device; its inputs are not bound yet."""
    folder = Path(artifact)
    description = json.loads((folder / artifacts.DESCRIPTION).read_text())
    device = run_device.device(target)
    if onednn.is_call(description["variant"]):
        onednn.load()
    module = run_device.load(folder / artifacts.LIBRARY)
    arguments = [(tuple(each["shape"]), each["dtype"]) for each in description["arguments"]]
    n_inputs = len(arguments) - description["n_outputs"]
    return Kernel(
        module=module,
        device=device,
        inputs=tuple(arguments[:n_inputs]),
        weight_indices=description["weights"],
        outputs=[tvm.runtime.empty(*each, device) for each in arguments[n_inputs:]],
        packed=description["packed"],
        target=target,
        run_device=run_device,
        is_loose=description["is_loose"],
        is_step=description["is_step"],
    )


def _sample(kernel: Kernel, request: RunRequest) -> Sampled:
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
    take = _taker(kernel, settings)
    deadline = time.monotonic() + settings.timeout_secs / 2
    for attempt in range(1, _ATTEMPTS + 1):
        started = time.monotonic()
        before = kernel.run_device.conditions(target)
        sampled = timing.sample(take, request)
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


def _taker(kernel: Kernel, settings: EvaluatorSettings) -> TakeSamples:
    """Return what samples the run time of a kernel."""
    if not is_gpu(kernel.target):
        return partial(_take, kernel, settings)
    if kernel.run_device.has_graphs:
        arguments = (*kernel.arguments, *kernel.outputs)
        launch = kernel.module[KERNEL]
        return GraphTimer(kernel.device, launch, arguments, kernel.weight_indices, settings).take
    # The clocks of a GPU rise with load.
    _take(kernel, EvaluatorSettings(cache_flush=False, min_repeat_ms=_WARM_UP_MS), 1)
    return partial(_take, kernel, settings)


def _take(kernel: Kernel, settings: EvaluatorSettings, repeat: int) -> Sequence[Sample]:
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

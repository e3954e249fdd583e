"""Execution of artifacts: comparison of the outputs, then timing, then comparison again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.engines.base import RunRequest, RunResult
from tuner.engines.cache_state import Arguments
from tuner.engines.relay import build as artifacts
from tuner.engines.relay import clock, timing
from tuner.engines.timing import merge_conditions
from tuner.engines.verification import checks
from tuner.errors import RequestError, error_text

Array = np.ndarray[Any, Any]


@dataclass
class Kernel:
    """A loaded artifact with its arguments in memory; see :class:`checks.Kernel`.

    Attributes:
        weight_indices: Indices of the arguments that are constants of every network.
        packed: Packed inputs as the artifact describes them.
        arguments: Inputs as the kernel reads them.
    """

    module: tvm.runtime.Module
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    weight_indices: list[int]
    outputs: list[Any]
    packed: list[dict[str, Any]]
    arguments: list[Any] = field(default_factory=list)
    is_loose: bool = False

    @property
    def arguments_by_use(self) -> Arguments:
        """Inputs, by what they are in a network."""
        return Arguments.split(self.arguments, self.weight_indices)

    def bind(self, arrays: Sequence[Array]) -> None:
        """Copy inputs, packed as the kernel expects them."""
        self.arguments = [tvm.nd.array(array) for array in arrays]
        for entry in self.packed:
            packed = tvm.nd.empty(tuple(entry["shape"]), entry["dtype"])
            pack = self.module[artifacts.pack_name(entry["index"])]
            pack(self.arguments[entry["index"]], packed)
            self.arguments[entry["index"]] = packed

    def call(self) -> list[Array]:
        """Run once on spoiled outputs and return them."""
        for output in self.outputs:
            output.copyfrom(checks.spoiled(output.shape, str(output.dtype)))
        self.module[artifacts.KERNEL](*self.arguments, *self.outputs)
        return [output.numpy() for output in self.outputs]


def run(request: RunRequest) -> RunResult:
    """Compare and time one artifact; see :class:`Engine`."""
    try:
        clock_secs = clock.clock_secs(request.target) if request.time_clock else None
        return replace(_run(request), clock_secs=clock_secs)
    except (OSError, RequestError):
        raise  # an unreadable artifact is not a failure of the candidate
    except Exception as error:  # an error of a candidate is a result
        return RunResult(error_kind="run_error", error_text=error_text(error))


def _run(request: RunRequest) -> RunResult:
    kernel = load_kernel(request.artifact)
    verdict = checks.check(kernel, request.references)
    if verdict.error_kind:
        return verdict
    sampled = timing.sample(kernel, request)
    verdict = checks.check_again(kernel, request.references, verdict)
    if verdict.error_kind:
        return verdict
    return replace(verdict, run_secs=sampled.run_secs, conditions=sampled.conditions or None)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Time artifacts in turns; see :class:`Engine`."""
    clocks = [
        clock.clock_secs(request.target) if request.time_clock else None for request in requests
    ]
    kernels = [load_kernel(request.artifact) for request in requests]
    samples: list[list[float]] = [[] for _ in kernels]
    conditions: list[dict[str, Any]] = [{} for _ in kernels]
    verdicts = [
        checks.check(kernel, request.references)
        for kernel, request in zip(kernels, requests, strict=True)
    ]
    correct = [i for i, verdict in enumerate(verdicts) if not verdict.error_kind]
    for turn in range(n_turns):
        order = correct if turn % 2 == 0 else reversed(correct)
        for i in order:
            sampled = timing.sample(kernels[i], requests[i])
            samples[i].extend(sampled.run_secs)
            conditions[i] = merge_conditions(conditions[i], sampled.conditions)
    for i in correct:
        verdict = checks.check_again(kernels[i], requests[i].references, verdicts[i])
        if not verdict.error_kind:
            verdict = replace(verdict, run_secs=tuple(samples[i]), conditions=conditions[i] or None)
        verdicts[i] = verdict
    return [
        replace(verdict, clock_secs=clock_secs)
        for verdict, clock_secs in zip(verdicts, clocks, strict=True)
    ]


def load_kernel(artifact: str) -> Kernel:
    """Load an artifact; its inputs are not bound yet."""
    folder = Path(artifact)
    description = json.loads((folder / artifacts.DESCRIPTION).read_text())
    module = tvm.runtime.load_module(str(folder / artifacts.LIBRARY))
    shapes = tuple((tuple(entry["shape"]), entry["dtype"]) for entry in description["inputs"])
    outputs = [
        tvm.nd.empty(tuple(entry["shape"]), entry["dtype"]) for entry in description["outputs"]
    ]
    return Kernel(module, shapes, description["weights"], outputs, description["packed"])

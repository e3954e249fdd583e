"""Execution of artifacts: comparison of the outputs, then timing, then comparison again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.engines.base import RunRequest, RunResult
from tuner.engines.cache_state import Arguments
from tuner.engines.relay import build as artifacts
from tuner.engines.relay import timing
from tuner.engines.timing import Sampled, merge
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
        return _run(request)
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
    return sampled.result(verdict)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Time artifacts in turns; see :class:`Engine`."""
    kernels = [load_kernel(request.artifact) for request in requests]
    turns: list[list[Sampled]] = [[] for _ in kernels]
    verdicts = [
        checks.check(kernel, request.references)
        for kernel, request in zip(kernels, requests, strict=True)
    ]
    correct = [i for i, verdict in enumerate(verdicts) if not verdict.error_kind]
    for turn in range(n_turns):
        order = correct if turn % 2 == 0 else reversed(correct)
        for i in order:
            turns[i].append(timing.sample(kernels[i], requests[i]))
    for i in correct:
        verdict = checks.check_again(kernels[i], requests[i].references, verdicts[i])
        verdicts[i] = verdict if verdict.error_kind else merge(turns[i]).result(verdict)
    return verdicts


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

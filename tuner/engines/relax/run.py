"""Execution of artifacts: comparison of the outputs, then timing, then comparison again."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.engines import onednn
from tuner.engines.base import RunRequest, RunResult
from tuner.engines.cache_state import Arguments
from tuner.engines.relax import build as artifacts
from tuner.engines.relax import timing
from tuner.engines.relax.run_device import LOCAL, RunDevice
from tuner.engines.timing import Sampled, merge
from tuner.engines.verification import checks
from tuner.errors import RequestError, error_text

Array = np.ndarray[Any, Any]


@dataclass
class Kernel:
    """A loaded artifact and its arguments on the device; see :class:`checks.Kernel`.

    Attributes:
        weight_indices: Indices of the arguments that are constants of every network.
        outputs: Outputs, which are the last arguments of the kernel.
        packed: Packed inputs as the artifact describes them.
        arguments: Inputs as the kernel reads them.
        is_loose: See :class:`checks.Kernel`.
        is_step: True for the step of a loop, which runs again and again on the same weights.
    """

    module: tvm.runtime.Module
    device: Any
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    weight_indices: list[int]
    outputs: list[Any]
    packed: list[dict[str, Any]]
    target: str
    run_device: RunDevice
    arguments: list[Any] = field(default_factory=list)
    is_loose: bool = False
    is_step: bool = False

    @property
    def arguments_by_use(self) -> Arguments:
        """Inputs, by what they are in a network."""
        return Arguments.split(self.arguments, self.weight_indices)

    def bind(self, arrays: Sequence[Array]) -> None:
        """Copy inputs to the device, packed as the kernel expects them."""
        self.arguments = [tvm.runtime.tensor(array, self.device) for array in arrays]
        _pack(self.module, self.device, self.arguments, self.packed)

    def call(self) -> list[Array]:
        """Run once on spoiled outputs and return them."""
        for output in self.outputs:
            output.copyfrom(checks.spoiled(output.shape, str(output.dtype)))
        self.module[artifacts.KERNEL](*self.arguments, *self.outputs)
        return [output.numpy() for output in self.outputs]


def run(request: RunRequest, run_device: RunDevice = LOCAL) -> RunResult:
    """Compare and time one artifact; see :class:`Engine`."""
    try:
        with _checking_device(run_device, request.target):
            return _run(request, run_device)
    except (OSError, RequestError):
        raise  # an unreadable artifact or a wrong device is not a failure of the candidate
    except Exception as error:  # an error of a candidate is a result
        return RunResult(error_kind="run_error", error_text=error_text(error))


def _run(request: RunRequest, run_device: RunDevice) -> RunResult:
    kernel = load_kernel(request.artifact, request.target, run_device)
    verdict = checks.check(kernel, request.references)
    if verdict.error_kind:
        return verdict
    sampled = timing.sample(kernel, request)
    verdict = checks.check_again(kernel, request.references, verdict)
    if verdict.error_kind:
        return verdict
    return sampled.result(verdict)


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


def run_interleaved(
    requests: list[RunRequest], n_turns: int, run_device: RunDevice = LOCAL
) -> list[RunResult]:
    """Time artifacts in turns; see :class:`Engine`."""
    with _checking_device(run_device, requests[0].target if requests else "{}"):
        return _run_interleaved(requests, n_turns, run_device)


def _run_interleaved(
    requests: list[RunRequest], n_turns: int, run_device: RunDevice
) -> list[RunResult]:
    kernels = [load_kernel(request.artifact, request.target, run_device) for request in requests]
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


def load_kernel(artifact: str, target: str, run_device: RunDevice = LOCAL) -> Kernel:
    """Load an artifact on its device; its inputs are not bound yet."""
    folder = Path(artifact)
    description = json.loads((folder / artifacts.DESCRIPTION).read_text())
    device = run_device.device(target)
    if onednn.is_call(description.get("variant", "")):
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
        is_loose=bool(description.get("is_loose")),
        is_step=bool(description.get("is_step")),
    )


def _pack(module: Any, device: Any, arguments: list[Any], packed: list[dict[str, Any]]) -> None:
    if not packed:
        return
    after = [tvm.runtime.empty(entry["shape"], entry["dtype"], device) for entry in packed]
    module["pack"](*(arguments[entry["index"]] for entry in packed), *after)
    for entry, tensor in zip(packed, after, strict=True):
        arguments[entry["index"]] = tensor

"""Execution of artifacts: comparison of the outputs, then timing, then comparison again."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from tuner.engines import runs
from tuner.engines.base import RunRequest, RunResult
from tuner.engines.relax.codegen import build as artifacts
from tuner.engines.relax.run import timing
from tuner.engines.relax.run.run_device import LOCAL, RunDevice
from tuner.engines.runs import LoadedKernel
from tuner.engines.runtime import onednn
from tuner.engines.verification.checks import Array
from tuner.errors import RequestError


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
    return runs.run(_loader(run_device), request, timing.sample, guard)


def run_interleaved(
    requests: list[RunRequest], n_turns: int, run_device: RunDevice = LOCAL
) -> list[RunResult]:
    """Time artifacts in turns; see :class:`Engine`."""
    with _checking_device(run_device, requests[0].target if requests else "{}"):
        return runs.run_interleaved(_loader(run_device), requests, timing.sample, n_turns)


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

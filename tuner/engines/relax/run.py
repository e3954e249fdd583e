"""Execution of artifacts: comparison of the output, then timing."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.engines import inputs
from tuner.engines.base import RunRequest, RunResult
from tuner.engines.cache_state import Arguments
from tuner.engines.relax import build as artifacts
from tuner.engines.relax import timing
from tuner.engines.relax.run_device import LOCAL, RunDevice
from tuner.engines.timing import merge_conditions
from tuner.errors import RequestError, WorkError, error_text

Array = np.ndarray[Any, Any]


@dataclass
class Kernel:
    """A loaded artifact with its arguments on the device.

    Attributes:
        weight_indices: Indices of the arguments that are constants of every network.
    """

    module: tvm.runtime.Module
    device: Any
    arguments: list[Any]
    weight_indices: list[int]
    output: Any
    n_terms: float
    target: str
    run_device: RunDevice

    @property
    def arguments_by_use(self) -> Arguments:
        """Inputs, by what they are in a network."""
        activations = [
            tensor for i, tensor in enumerate(self.arguments) if i not in self.weight_indices
        ]
        return Arguments([self.arguments[i] for i in self.weight_indices], activations)

    def call(self) -> np.ndarray[Any, Any]:
        """Run once on an output buffer filled with a marker and return it."""
        self.output.copyfrom(_spoiled(self.output))
        self.module[artifacts.KERNEL](*self.arguments, self.output)
        value: np.ndarray[Any, Any] = self.output.numpy()
        return value


def run(request: RunRequest, run_device: RunDevice = LOCAL) -> RunResult:
    """Compare and time one artifact; see :class:`Engine`."""
    try:
        with _checking_device(run_device, request.target):
            clock_secs = run_device.clock_secs(request.target) if request.time_clock else None
            return replace(_run(request, run_device), clock_secs=clock_secs)
    except (OSError, RequestError):
        raise  # an unreadable artifact or a wrong device is not a failure of the candidate
    except Exception as error:  # an error of a candidate is a result
        return RunResult(error_kind="run_error", error_text=error_text(error))


def _run(request: RunRequest, run_device: RunDevice) -> RunResult:
    expected, positive = _read_reference(request.reference)
    kernel = load_kernel(request.artifact, request.target, positive=positive, run_device=run_device)
    wrong = _compare(kernel, expected)
    if isinstance(wrong, RunResult):
        return wrong
    sampled = timing.sample(kernel, request)
    return RunResult(sampled.run_secs, max_error=wrong, conditions=sampled.conditions or None)


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
        clocks = [
            run_device.clock_secs(request.target) if request.time_clock else None
            for request in requests
        ]
        results = _run_interleaved(requests, n_turns, run_device)
        return [
            replace(result, clock_secs=secs) for result, secs in zip(results, clocks, strict=True)
        ]


def _run_interleaved(
    requests: list[RunRequest], n_turns: int, run_device: RunDevice
) -> list[RunResult]:
    kernels = [
        load_kernel(request.artifact, request.target, run_device=run_device) for request in requests
    ]
    samples: list[list[float]] = [[] for _ in kernels]
    conditions: list[dict[str, Any]] = [{} for _ in kernels]
    for kernel in kernels:
        kernel.call()
    for turn in range(n_turns):
        order = range(len(kernels)) if turn % 2 == 0 else reversed(range(len(kernels)))
        for i in order:
            sampled = timing.sample(kernels[i], requests[i])
            samples[i].extend(sampled.run_secs)
            conditions[i] = merge_conditions(conditions[i], sampled.conditions)
    return [
        RunResult(tuple(secs), conditions=merged or None)
        for secs, merged in zip(samples, conditions, strict=True)
    ]


def reference(artifact: str, target: str, out: str, run_device: RunDevice = LOCAL) -> None:
    """Keep the output of an unscheduled artifact; see :class:`Engine`."""
    positive = False
    with _checking_device(run_device, target):
        output = load_kernel(artifact, target, run_device=run_device).call()
        if not _any_finite(output):
            # A logarithm or a root before a reduction: only positive inputs reveal wrong results.
            positive = True
            output = load_kernel(artifact, target, positive=True, run_device=run_device).call()
    if not _any_finite(output):
        raise WorkError("no finite output on the seeded inputs, so candidates cannot be verified")
    partial = Path(f"{out}.partial")
    with partial.open("wb") as stream:
        np.savez(stream, output=output, positive=positive)
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(out)


def load_kernel(
    artifact: str, target: str, *, positive: bool = False, run_device: RunDevice = LOCAL
) -> Kernel:
    """Load an artifact and copy seeded arguments, packed as it expects them, to its device."""
    folder = Path(artifact)
    description = json.loads((folder / artifacts.DESCRIPTION).read_text())
    device = run_device.device(target)
    module = run_device.load(folder / artifacts.LIBRARY)
    *ins, out = description["arguments"]
    drawn = inputs.make_arguments(
        tuple((tuple(a["shape"]), a["dtype"]) for a in ins), positive=positive
    )
    arguments = [tvm.runtime.tensor(array, device) for array in drawn]
    _pack(module, device, arguments, description["packed"])
    output = tvm.runtime.empty(out["shape"], out["dtype"], device)
    n_terms = description["flop"] / 2 / max(math.prod(out["shape"]), 1)
    return Kernel(
        module, device, arguments, description["weights"], output, n_terms, target, run_device
    )


def _pack(module: Any, device: Any, arguments: list[Any], packed: list[dict[str, Any]]) -> None:
    if not packed:
        return
    after = [tvm.runtime.empty(entry["shape"], entry["dtype"], device) for entry in packed]
    module["pack"](*(arguments[entry["index"]] for entry in packed), *after)
    for entry, tensor in zip(packed, after, strict=True):
        arguments[entry["index"]] = tensor


def _read_reference(path: str) -> tuple[Array | None, bool]:
    """Return the expected output (None without a reference) and the sign rule of the inputs."""
    if not path:
        return None, False
    with np.load(path) as stored:
        return stored["output"], bool(stored["positive"])


def _any_finite(output: Array) -> bool:
    return output.dtype.kind != "f" or bool(np.isfinite(output).any())


def _compare(kernel: Kernel, expected: Array | None) -> float | RunResult:
    """Return the error of the kernel's output, or the verdict that it is wrong."""
    output = kernel.call()
    if expected is None:
        return 0.0
    error = inputs.relative_error(output, expected)
    allowed = inputs.tolerance(str(expected.dtype), kernel.n_terms)
    if error <= allowed:
        return error
    return RunResult(
        error_kind="wrong_result",
        error_text=f"output is off by {error:.3g} of its range, {allowed:.3g} is allowed",
        max_error=error if math.isfinite(error) else None,
    )


def _spoiled(output: Any) -> np.ndarray[Any, Any]:
    """Return an output that no kernel computes, to detect kernels that write nothing."""
    dtype = np.dtype(str(output.dtype))
    fill = np.nan if dtype.kind == "f" else np.iinfo(dtype).max if dtype.kind in "iu" else True
    return np.full(tuple(output.shape), fill, dtype=dtype)

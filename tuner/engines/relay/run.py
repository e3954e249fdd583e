"""Execution of artifacts: comparison of the output, then timing."""

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.engines import inputs
from tuner.engines.base import RunRequest, RunResult
from tuner.engines.cache_state import Arguments
from tuner.engines.relay import build as artifacts
from tuner.engines.relay import clock, timing
from tuner.engines.timing import merge_conditions
from tuner.errors import RequestError, WorkError, error_text

Array = np.ndarray[Any, Any]


@dataclass
class Kernel:
    """A loaded artifact with its arguments in memory.

    Attributes:
        weight_indices: Indices of the arguments that are constants of every network.
    """

    module: tvm.runtime.Module
    arguments: list[Any]
    weight_indices: list[int]
    outputs: list[Any]
    n_terms: float

    @property
    def arguments_by_use(self) -> Arguments:
        """Inputs, by what they are in a network."""
        activations = [
            tensor for i, tensor in enumerate(self.arguments) if i not in self.weight_indices
        ]
        return Arguments([self.arguments[i] for i in self.weight_indices], activations)

    def call(self) -> Array:
        """Run once on output buffers filled with a marker; return them concatenated."""
        for output in self.outputs:
            output.copyfrom(_spoiled(output))
        self.module[artifacts.KERNEL](*self.arguments, *self.outputs)
        values = [output.numpy() for output in self.outputs]
        return (
            values[0] if len(values) == 1 else np.concatenate([value.ravel() for value in values])
        )


def run(request: RunRequest) -> RunResult:
    """Compare and time one artifact; see :class:`Engine`."""
    try:
        clock_secs = clock.read(request.target) if request.time_clock else None
        return replace(_run(request), clock_secs=clock_secs)
    except (OSError, RequestError):
        raise  # an unreadable artifact is not a failure of the candidate
    except Exception as error:  # an error of a candidate is a result
        return RunResult(error_kind="run_error", error_text=error_text(error))


def _run(request: RunRequest) -> RunResult:
    expected, positive = _read_reference(request.reference)
    kernel = load_kernel(request.artifact, positive=positive)
    wrong = _compare(kernel, expected)
    if isinstance(wrong, RunResult):
        return wrong
    sampled = timing.sample(kernel, request)
    return RunResult(sampled.run_secs, max_error=wrong, conditions=sampled.conditions or None)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Time artifacts in turns; see :class:`Engine`."""
    clocks = [clock.read(request.target) if request.time_clock else None for request in requests]
    kernels = [load_kernel(request.artifact) for request in requests]
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
        RunResult(tuple(secs), conditions=merged or None, clock_secs=clock_secs)
        for secs, merged, clock_secs in zip(samples, conditions, clocks, strict=True)
    ]


def reference(artifact: str, target: str, out: str) -> None:  # noqa: ARG001  the contract's
    """Keep the output of an unscheduled artifact; see :class:`Engine`."""
    positive = False
    output = load_kernel(artifact).call()
    if not _any_finite(output):
        # A logarithm or a root before a reduction: only positive inputs reveal wrong results.
        positive = True
        output = load_kernel(artifact, positive=True).call()
    if not _any_finite(output):
        raise WorkError("no finite output on the seeded inputs, so candidates cannot be verified")
    partial = Path(f"{out}.partial")
    with partial.open("wb") as stream:
        np.savez(stream, output=output, positive=positive)
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(out)


def load_kernel(artifact: str, *, positive: bool = False) -> Kernel:
    """Load an artifact and seeded arguments, packed as it expects them."""
    folder = Path(artifact)
    description = json.loads((folder / artifacts.DESCRIPTION).read_text())
    module = tvm.runtime.load_module(str(folder / artifacts.LIBRARY))
    shapes = tuple((tuple(entry["shape"]), entry["dtype"]) for entry in description["inputs"])
    arguments = [tvm.nd.array(array) for array in inputs.make_arguments(shapes, positive=positive)]
    for entry in description["packed"]:
        packed = tvm.nd.empty(tuple(entry["shape"]), entry["dtype"])
        module[artifacts.pack_name(entry["index"])](arguments[entry["index"]], packed)
        arguments[entry["index"]] = packed
    described = description["outputs"]
    outputs = [tvm.nd.empty(tuple(entry["shape"]), entry["dtype"]) for entry in described]
    n_elements = sum(math.prod(entry["shape"]) for entry in described)
    n_terms = description["flop"] / 2 / max(n_elements, 1)
    return Kernel(module, arguments, description["weights"], outputs, n_terms)


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


def _spoiled(output: Any) -> Array:
    """Return an output that no kernel computes, to detect kernels that write nothing."""
    dtype = np.dtype(str(output.dtype))
    fill = np.nan if dtype.kind == "f" else np.iinfo(dtype).max if dtype.kind in "iu" else True
    return np.full(tuple(output.shape), fill, dtype=dtype)

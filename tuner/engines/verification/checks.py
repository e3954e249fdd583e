"""Comparison of a kernel's outputs with its references, before and after it is timed."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 after it
import numpy as np

from tuner.engines.base import RunResult
from tuner.engines.verification import input_sets, references
from tuner.engines.verification.comparison import difference, relative_error
from tuner.engines.verification.dtypes import is_bool, is_float
from tuner.engines.verification.references import Reference

Array = np.ndarray[Any, Any]


class Kernel(Protocol):
    """A loaded kernel with buffers for its arguments.

    Attributes:
        inputs: Shape and dtype of each input.
        is_loose: True for an algorithm that magnifies rounding errors.
    """

    inputs: tuple[tuple[tuple[int, ...], str], ...]
    is_loose: bool

    def bind(self, arrays: Sequence[Array]) -> None:
        """Copy inputs to the device, packed as the kernel expects them."""

    def call(self) -> list[Array]:
        """Run once on spoiled outputs and return them."""


def check(kernel: Kernel, paths: Sequence[str]) -> RunResult:
    """Compare a kernel's outputs with every reference; the inputs of the last remain bound.

    Without references it runs once on harmless inputs.

    Returns:
        A result without samples: the largest error, or the verdict that an output is wrong.
    """
    if not paths:
        kernel.bind(input_sets.draw(input_sets.harmless(kernel.inputs)))
        kernel.call()
    verdict = RunResult(max_error=0.0)
    for path in paths:
        reference = _load(path)
        kernel.bind(reference.draw())
        verdict = _compare(kernel, reference, verdict)
        if verdict.error_kind:
            break
    return verdict


def check_again(kernel: Kernel, paths: Sequence[str], verdict: RunResult) -> RunResult:
    """Compare the outputs on the inputs that are bound, after many runs; see :func:`check`."""
    return _compare(kernel, _load(paths[-1]), verdict) if paths else verdict


def spoiled(shape: Sequence[int], dtype: str) -> Array:
    """Return an output that no kernel computes, to detect kernels that write nothing."""
    if is_bool(dtype):
        return np.ones(tuple(shape), np.bool_)
    fill = np.nan if is_float(dtype) else np.iinfo(dtype).max
    return np.full(tuple(shape), fill, dtype=dtype)


@lru_cache(maxsize=2)
def _load(path: str) -> Reference:
    """Read a reference, which the candidates of a round share; its file does not change."""
    return references.load(path)


def _compare(kernel: Kernel, reference: Reference, verdict: RunResult) -> RunResult:
    """Run once and return the worse of a verdict and the verdict on this run."""
    outputs = kernel.call()
    error = verdict.max_error or 0.0
    for number, (output, expected) in enumerate(zip(outputs, reference.outputs, strict=True)):
        text = difference(output, expected.loose() if kernel.is_loose else expected)
        error = max(error, relative_error(output, expected))
        if text:
            name = f"output {number}" if len(outputs) > 1 else "output"
            return RunResult(
                error_kind="wrong_result",
                error_text=f"{name} {text}",
                max_error=error if math.isfinite(error) else None,
            )
    return replace(verdict, max_error=error)

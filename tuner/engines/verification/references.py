"""References: the inputs of a kernel, its expected outputs, and the errors that are allowed."""

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import IO, Any

import numpy as np

from tuner.engines.base import InputKind
from tuner.engines.verification import input_sets
from tuner.engines.verification.comparison import Expected
from tuner.engines.verification.dtypes import is_bool, is_float
from tuner.engines.verification.input_sets import InputSet, InputSpec
from tuner.engines.verification.interpreter import interpret
from tuner.engines.verification.interpreter.numbers import UNKNOWN, Number, format_of
from tuner.engines.verification.interpreter.program import (
    Bind,
    Block,
    Call,
    Program,
    Store,
    expressions,
    statements,
)
from tuner.engines.verification.limits import Highs, Limits
from tuner.errors import WorkError

Array = np.ndarray[Any, Any]

# Bits of integers, from the full range down, for kernels whose sums overflow.
_BITS = (64, 16, 12, 8, 4)
# Inputs that are made positive one at a time.
_MAX_SINGLE = 6
# Share of elements without a check up to which inputs are good enough.
_MAX_UNCHECKED = 0.1

# Numbers from which on few of them are the extreme of any.
_LONG = 16
_SIGNS = {"Max": -1, "Min": 1}
# Operations that follow IEEE 754 for NaN and infinities in fast mathematics, too.
_EXACT = {
    *("Add", "Sub", "Mul", "Min", "Max", "fabs", "Select", "isnan"),
    *("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or", "Not", "FloorDiv", "FloorMod"),
}


def longest_sum(program: Program) -> tuple[int, float]:
    """Return the number of terms of the longest sum, and the integers exact in every sum's type."""
    n_terms, exact = 1, math.inf
    for statement in statements(program.body):
        if not isinstance(statement, Block):
            continue
        extent = math.prod(axis.extent for axis in statement.axes if axis.is_reduction)
        for store in statement.body:
            if isinstance(store, Store) and extent > 1 and is_float(store.buffer.dtype):
                n_terms = max(n_terms, extent)
                exact = min(exact, format_of(store.buffer.dtype).exact_integers)
    return n_terms, exact


def has_long_extremes(program: Program) -> bool:
    """Return True if a maximum, a minimum or the place of one depends on many numbers."""
    for statement in statements(program.body):
        if isinstance(statement, Block):
            extent = math.prod(axis.extent for axis in statement.axes if axis.is_reduction)
            for store in statement.body:
                is_sum = (
                    isinstance(store, Store)
                    and isinstance(store.value, Call)
                    and store.value.operation == "Add"
                )
                if extent >= _LONG and not is_sum:
                    return True
    return False


def sign_of_limit(program: Program) -> int:
    """Return the sign of the infinity that its extremes start at, or of one; 0 if it has sums.

    The order of sums may matter to infinities and NaN, and fast functions to all special numbers.
    """
    if program.fast_math and not _is_exact(program):
        return 0
    sign = -1
    for statement in statements(program.body):
        if not isinstance(statement, Block) or not any(a.is_reduction for a in statement.axes):
            continue
        for store in statement.body:
            value = store.value if isinstance(store, Store) else None
            if not isinstance(value, Call) or value.operation not in _SIGNS:
                return 0
            sign = _SIGNS[value.operation]
    return sign


def _is_exact(program: Program) -> bool:
    """Return whether fast mathematics changes no result of a program for special numbers."""
    values = [each.value for each in statements(program.body) if isinstance(each, Store | Bind)]
    calls = (part for value in values for part in expressions(value) if isinstance(part, Call))
    return all(
        call.operation in _EXACT or (call.operation == "Cast" and is_float(call.dtype))
        for call in calls
    )


@dataclass(frozen=True)
class Reference:
    """Inputs and expected outputs of a kernel."""

    input_set: InputSet
    checksum: int
    outputs: tuple[Expected, ...]

    def draw(self) -> list[Array]:
        """Draw the inputs.

        Raises:
            WorkError: If this machine draws other numbers than the one that made the reference.
        """
        return _drawn(self.input_set, self.checksum)


@lru_cache(maxsize=2)
def _drawn(input_set: InputSet, checksum: int) -> list[Array]:
    """Draw inputs and check them, once for the candidates of a round."""
    arrays = input_sets.draw(input_set)
    if input_sets.checksum(arrays) != checksum:
        raise WorkError("this machine's NumPy draws other inputs than the reference has")
    return arrays


def make(program: Program, kind: InputKind, seed: int, growth: float = 0.0) -> Reference:
    """Compute the reference of a program on inputs for which its outputs are defined.

    Inputs have both signs and integers their full range. Where that gives a NaN, an infinity or an
    overflow of integers, the least restriction that avoids it is chosen: one positive input, all
    positive, fewer bits, small whole numbers. Whole inputs have NaN and infinities where kernels
    keep them and the order of operations does not matter.

    Args:
        program: Program to run.
        growth: See :func:`interpreter.run`; 0 for no loose bounds.

    Raises:
        WorkError: If an output has no element that can be checked.
    """
    best: tuple[int, InputSet, list[Number]] | None = None
    for input_set in _input_sets(program, kind, seed):
        arrays = dict(zip(program.inputs, input_sets.draw(input_set), strict=True))
        outputs = interpret.run(program, arrays, independent=kind == "real")
        n_bad = _n_undefined(outputs, is_finite=not _has_specials(input_set))
        if best is None or n_bad < best[0]:
            best = (n_bad, input_set, outputs)
        if not n_bad:
            break
    assert best is not None
    _, chosen, outputs = best
    expected = tuple(_expected(number) for number in outputs)
    if growth:
        arrays = dict(zip(program.inputs, input_sets.draw(chosen), strict=True))
        loose = interpret.run(program, arrays, independent=kind == "real", growth=growth)
        expected = tuple(
            replace(each, loose_bounds=_expected(number).bounds)
            for each, number in zip(expected, loose, strict=True)
        )
    is_finite = not _has_specials(chosen)
    for number in outputs:
        if number.value.size and not _is_checked(number, is_finite=is_finite).any():
            raise WorkError(
                "no element of an output is defined on the seeded inputs, so candidates cannot be "
                "verified"
            )
    return Reference(chosen, input_sets.checksum(input_sets.draw(chosen)), expected)


def dump(reference: Reference) -> bytes:
    """Serialise as an ``.npz`` file."""
    arrays: dict[str, Any] = {
        "input_set": reference.input_set.dump(),
        "checksum": reference.checksum,
        "n_outputs": len(reference.outputs),
    }
    for index, output in enumerate(reference.outputs):
        arrays[f"values_{index}"] = output.values
        if output.bounds is not None:
            arrays[f"bounds_{index}"] = output.bounds
        if output.loose_bounds is not None:
            arrays[f"loose_bounds_{index}"] = output.loose_bounds
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def load(path: str | IO[bytes]) -> Reference:
    """Read a file with the output of :func:`dump`."""
    with np.load(path) as stored:
        outputs = tuple(
            Expected(
                stored[f"values_{i}"], stored.get(f"bounds_{i}"), stored.get(f"loose_bounds_{i}")
            )
            for i in range(int(stored["n_outputs"]))
        )
        input_set = InputSet.load(str(stored["input_set"]))
        return Reference(input_set, int(stored["checksum"]), outputs)


def _input_sets(program: Program, kind: InputKind, seed: int) -> Iterator[InputSet]:
    """Yield sets of inputs, the least restricted first."""
    floats = [i for i, buffer in enumerate(program.inputs) if is_float(buffer.dtype)]
    has_integers = len(floats) < len(program.inputs)
    singles = [(i,) for i in floats[:_MAX_SINGLE]] if len(floats) > 1 else []
    signs: list[tuple[int, ...]] = [(), *singles, *([tuple(floats)] if floats else [])]
    sign = sign_of_limit(program) if kind == "whole" else 0
    n_results = min(math.prod(buffer.shape) for buffer in program.outputs)
    if sign and floats and n_results >= input_sets.MIN_SPECIAL:
        specs = [replace(spec, special_sign=sign) for spec in _specs(program, _BITS[0])]
        yield InputSet(kind, seed, tuple(specs))
    for bits in _BITS if has_integers else _BITS[:1]:
        specs = _specs(program, bits)
        for positive in signs:
            chosen = tuple(replace(spec, is_positive=i in positive) for i, spec in enumerate(specs))
            yield InputSet(kind, seed, chosen)
    if kind == "whole" and floats:
        # Products of several inputs, such as scales before an attention, leave the half precision.
        bits = _BITS[-1] if has_integers else _BITS[0]
        small = (replace(spec, magnitude=1, has_peaks=False) for spec in _specs(program, bits))
        yield InputSet(kind, seed, tuple(small))


def _specs(program: Program, bits: int) -> list[InputSpec]:
    limits = Limits(program)
    n_terms, exact = longest_sum(program)
    # With numbers up to 3 the mean magnitude of a product is 4; half of the range is margin.
    magnitude = 3 if 4 * n_terms <= exact / 2 else 1
    density = min(1.0, exact / 2 / n_terms) if magnitude == 1 else 1.0
    has_peaks = has_long_extremes(program)
    specs = []
    for buffer in program.inputs:
        if is_float(buffer.dtype) or is_bool(buffer.dtype):
            specs.append(
                InputSpec(buffer.shape, buffer.dtype, magnitude=magnitude, has_peaks=has_peaks)
            )
            continue
        low, high = input_sets.integer_range(buffer.dtype, bits)
        low = max(low, limits.low.get(buffer, low))
        spec = InputSpec(buffer.shape, buffer.dtype, low, max(low, high), has_peaks=has_peaks)
        limit = limits.highs(buffer)
        specs.append(spec if limit is None else _limited(spec, limit))
    floats = [i for i, spec in enumerate(specs) if is_float(spec.dtype)]
    if density < 1.0 and floats:
        # Each term of the sum occurs in many outputs if the larger factor is the sparse one.
        largest = max(floats, key=lambda i: int(np.prod(specs[i].shape, dtype=np.int64)))
        specs[largest] = replace(specs[largest], density=density)
    return specs


def _limited(spec: InputSpec, limit: Highs) -> InputSpec:
    """Return a description of integers within limits, such as indices."""
    highs = tuple(
        max(spec.low, spec.high if value is None else min(value, spec.high))
        for value in limit.values
    )
    if len(set(highs)) <= 1:
        return replace(spec, high=highs[0] if highs else spec.high, has_peaks=False)
    return replace(spec, high=max(highs), axis=limit.axis, highs=highs, has_peaks=False)


def _has_specials(input_set: InputSet) -> bool:
    return any(spec.special_sign for spec in input_set.specs)


def _is_checked(number: Number, *, is_finite: bool) -> Array:
    """Return where the error of an output is bounded, and the output finite if it has to be."""
    has_to_be = is_finite and number.value.dtype.kind == "f"
    finite = np.isfinite(number.value) if has_to_be else True
    return np.broadcast_to(finite & (_bounds(number) < UNKNOWN), number.value.shape)


def _bounds(number: Number) -> Array:
    if is_bool(number.dtype) and number.error is not None:
        return np.where(number.error > 0.0, UNKNOWN, 0.0)
    return number.errors


def _n_undefined(outputs: Sequence[Number], *, is_finite: bool) -> int:
    """Count elements that have to be finite and are not, and many without a check."""
    n_bad = 0
    for number in outputs:
        if is_finite and number.value.dtype.kind == "f":
            n_bad += int((~np.isfinite(number.value)).sum())
        n_unchecked = int((~_is_checked(number, is_finite=is_finite)).sum())
        if n_unchecked > _MAX_UNCHECKED * number.value.size:
            n_bad += n_unchecked
    return n_bad


def _expected(number: Number) -> Expected:
    """Return values in a compact type, whose rounding is added to the bounds."""
    if not is_float(number.dtype):
        bounds = None if number.error is None else _narrow_bounds(number, np.zeros(()))
        values = number.value.astype(np.bool_ if is_bool(number.dtype) else number.dtype)
        return Expected(values, bounds)
    if number.dtype == "float64":
        values = number.value
    else:
        with np.errstate(over="ignore"):
            values = number.value.astype(np.float32)
    with np.errstate(invalid="ignore"):
        moved = np.abs(values.astype(np.float64) - number.value)
    moved = np.where(np.isnan(moved), 0.0, moved)
    if number.error is None and not moved.any():
        return Expected(values, None)
    return Expected(values, _narrow_bounds(number, moved))


def _narrow_bounds(number: Number, moved: Array) -> Array:
    bounds = np.broadcast_to(_bounds(number) + moved, number.value.shape)
    with np.errstate(over="ignore"):
        # Rounded up, and by what the comparison in float32 rounds.
        return np.where(bounds == 0.0, 0.0, bounds * (1.0 + 2.0**-20)).astype(np.float32)

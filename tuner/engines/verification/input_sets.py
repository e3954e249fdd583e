"""Seeded inputs of kernels that reveal errors, drawn alike in every process.

Two kinds exist. ``real`` inputs are dense: floating-point numbers in [-1, 1), integers of the full
range. ``whole`` inputs are whole numbers, so few and small that every sum of their products is
exact in the type of the sum, whatever its order: there a kernel must agree exactly, and a lost or
doubled term shows in any type.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.engines.verification.dtypes import is_bool, is_float
from tuner.errors import WorkError

if TYPE_CHECKING:
    from tuner.engines.base import InputKind

with suppress(ImportError):  # the runner of a pack can do without
    import ml_dtypes  # noqa: F401  NumPy knows bfloat16 after it

Array = np.ndarray[Any, Any]

_MAX_INTEGER = 2**62
# Magnitude of peaks among whole floating-point numbers, exact in every type, and their share.
_PEAK = 12
_PEAK_SHARE = 0.25
# Numbers among which kernels differ, their share in a part of a tensor, and that of infinite rows.
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0)
_SPECIAL_SHARE, _ROW_SHARE = 1 / 4, 1 / 16
#: Size from which tensors have them.
MIN_SPECIAL = 8


@dataclass(frozen=True)
class InputSpec:
    """Description of one input.

    Attributes:
        dtype: Its type.
        low: Smallest integer.
        high: Largest integer.
        axis: The axis along which the largest integers differ.
        special_sign: Sign of the infinity that rows along each axis and a box hold, beside NaN,
            infinities and zeros alone in the first half of every axis; 0 for none of them.
        highs: Largest integers at the positions along that axis; empty if they are alike.
        is_positive: True to draw positive floating-point numbers only.
        density: Share of non-zero numbers among whole ones.
        magnitude: Largest magnitude of whole numbers.
        has_peaks: True for large and small numbers at the ends of all axes of whole ones. A maximum
            of many numbers depends on one of them, and what a kernel loses is at an end.
    """

    shape: tuple[int, ...]
    dtype: str
    low: int = 0
    high: int = 1
    is_positive: bool = False
    density: float = 1.0
    magnitude: int = 3
    has_peaks: bool = False
    special_sign: int = 0
    axis: int = 0
    highs: tuple[int, ...] = ()

    @property
    def high_array(self) -> Array:
        """Largest integers, in a shape that broadcasts to that of the input."""
        if not self.highs:
            return np.array(self.high)
        return np.expand_dims(np.array(self.highs), tuple(range(1, len(self.shape) - self.axis)))


@dataclass(frozen=True)
class InputSet:
    """Description of the inputs of a kernel; equal sets draw equal numbers."""

    kind: "InputKind"
    seed: int
    specs: tuple[InputSpec, ...]

    def dump(self) -> str:
        """Serialise as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> "InputSet":
        """Deserialise the output of :meth:`dump`."""
        fields = json.loads(text)
        specs = tuple(
            InputSpec(
                **{**spec, "shape": tuple(spec["shape"]), "highs": tuple(spec.get("highs", ()))}
            )
            for spec in fields["specs"]
        )
        return cls(fields["kind"], fields["seed"], specs)


def harmless(arguments: Iterable[tuple[Sequence[int], str]]) -> InputSet:
    """Return inputs for a kernel whose shapes and types alone are known.

    Integers are 0 or 1, which are valid as indices of nearly all tensors.
    """
    return InputSet("real", 0, tuple(InputSpec(tuple(shape), dtype) for shape, dtype in arguments))


@lru_cache(maxsize=2)
def draw(input_set: InputSet) -> list[Array]:
    """Draw inputs; callers do not change the arrays."""
    rng = np.random.default_rng([input_set.seed, input_set.kind == "whole"])
    return [_draw(rng, spec, input_set.kind) for spec in input_set.specs]


def checksum(arrays: Sequence[Array]) -> int:
    """Return a checksum of drawn inputs, which differs if another NumPy draws other numbers."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, total)
    return total


def integer_range(dtype: str, bits: int) -> tuple[int, int]:
    """Return the range of an integer type, limited to a number of bits."""
    n_bits = min(int("".join(filter(str.isdigit, dtype)) or 64), bits)
    if dtype.startswith("u"):
        return 0, min((1 << n_bits) - 1, _MAX_INTEGER)
    return max(-(1 << (n_bits - 1)), -_MAX_INTEGER), min((1 << (n_bits - 1)) - 1, _MAX_INTEGER)


def _draw(rng: np.random.Generator, spec: InputSpec, kind: "InputKind") -> Array:
    if is_bool(spec.dtype):
        return rng.integers(0, 2, size=spec.shape).astype(np.bool_)
    if is_float(spec.dtype):
        if kind == "real":
            drawn = rng.random(size=spec.shape, dtype=np.float32)
            is_positive = spec.is_positive
            drawn = drawn * np.float32(0.9) + np.float32(0.1) if is_positive else drawn * 2 - 1
            return drawn.astype(spec.dtype)
        drawn = _whole_numbers(rng, spec)
        if spec.special_sign and drawn.size >= MIN_SPECIAL:
            _add_specials(rng, drawn, spec.special_sign * np.inf)
        if spec.has_peaks:
            low = 1 if spec.is_positive else -_PEAK
            _add_peaks(rng, drawn, (low, _PEAK))
        return drawn.astype(spec.dtype)
    if "int" not in spec.dtype:
        raise WorkError(f"no inputs of type {spec.dtype} can be drawn")
    high = spec.high_array
    integers = rng.integers(spec.low, high, size=spec.shape, endpoint=True)
    if kind == "whole":
        # The ends of the range reveal saturation and wrong signs.
        ends = np.where(rng.choice([False, True], size=spec.shape), high, spec.low)
        integers = np.where(rng.random(spec.shape) < 0.25, ends, integers)
        if spec.has_peaks:
            _add_peaks(rng, integers, (spec.low, spec.high))
    return np.asarray(integers).astype(spec.dtype)


def _whole_numbers(rng: np.random.Generator, spec: InputSpec) -> Array:
    drawn = rng.integers(1, spec.magnitude + 1, size=spec.shape, dtype=np.int8)
    if spec.is_positive:
        return drawn.astype(np.float32)
    drawn *= rng.choice(np.array([-1, 1], np.int8), size=spec.shape)
    if spec.density < 1.0:
        drawn *= rng.random(size=spec.shape, dtype=np.float32) < spec.density
    return drawn.astype(np.float32)


def _add_peaks(rng: np.random.Generator, array: Array, ends: tuple[int, int]) -> None:
    """Replace numbers at both ends of each axis by the largest or the smallest."""
    for axis in range(array.ndim):
        for end in (0, -1):
            part = array[(slice(None),) * axis + (end,)]
            is_peak = rng.random(part.shape) < _PEAK_SHARE
            array[(slice(None),) * axis + (end,)] = np.where(
                is_peak, rng.choice(ends, size=part.shape), part
            )


def _add_specials(rng: np.random.Generator, array: Array, infinity: float) -> None:
    """Replace some elements by special numbers, and rows along each axis by an infinity.

    What a maximum over some axes reads must not be special for all of its results: NaN would hide
    what a kernel does wrong elsewhere.
    """
    half = array[tuple(slice((extent + 1) // 2) for extent in array.shape)]
    is_special = rng.random(half.shape) < _SPECIAL_SHARE
    half[...] = np.where(is_special, rng.choice(_SPECIAL, size=half.shape), half)
    array[tuple(slice((extent + 3) // 4) for extent in array.shape)] = infinity
    for axis in range(array.ndim):
        shape = [1 if each == axis else extent for each, extent in enumerate(array.shape)]
        array[...] = np.where(rng.random(shape) < _ROW_SHARE, infinity, array)
    half[(-1,) * array.ndim] = np.nan

"""Digests of tensors, by which a value of one runtime is recognised in another one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

# Runtimes sum in other orders, and a variant of a convolution is less exact than its definition.
_TOLERANCE = 2e-3
# Of few elements, the sums tell little: their values must agree to the last bits of a float32.
_FEW, _TOLERANCE_OF_FEW = 16, 2e-5
# Share of the norm by which the weighted sums of one order differ at most.
_ORDER_TOLERANCE = 1e-2
# Masks of attention hold infinity or the largest float, which would hide all other elements.
_LARGE = 1e30


@dataclass(frozen=True)
class TensorDigest:
    """Sums over the elements of a tensor, mostly independent of their order.

    Zeros add to none of them, so that a tensor with padded channels has the digest of the bare one.

    Attributes:
        n_elements: Number of elements.
        total: Sum of the elements.
        magnitude: Sum of their magnitudes.
        square: Sum of their squares.
        quartic: Sum of their fourth powers.
        largest: Largest magnitude.
        weighted: Sum of the elements with a weight for each position.
    """

    n_elements: int
    total: float
    magnitude: float
    square: float
    quartic: float
    largest: float
    weighted: float

    @property
    def is_telling(self) -> bool:
        """False for a tensor of zeros, which equals too many others."""
        return self.magnitude > 0.0

    def has_values_of(self, other: "TensorDigest") -> bool:
        """Return whether both tensors have the same elements, in any order, besides zeros."""
        tolerance = _TOLERANCE
        if min(self.n_elements, other.n_elements) < _FEW:
            tolerance = _TOLERANCE_OF_FEW
        pairs = (
            (self.magnitude, other.magnitude, 1.0),
            (self.largest, other.largest, 1.0),
            (self.square, other.square, 2.0),
            (self.quartic, other.quartic, 4.0),
        )
        if any(abs(a - b) > tolerance * power * max(a, b) for a, b, power in pairs):
            return False
        return abs(self.total - other.total) <= tolerance * self.magnitude

    def has_order_of(self, other: "TensorDigest") -> bool:
        """Return whether both tensors, which have the same elements, have them in one order."""
        is_close = abs(self.weighted - other.weighted) <= _ORDER_TOLERANCE * self.square**0.5
        return self.n_elements == other.n_elements and is_close


def digest_of(array: Array) -> TensorDigest:
    """Return the digest of a tensor of numbers."""
    import numpy as np  # the contract of engines needs none of it, nor do help pages

    values = np.asarray(array).reshape(-1).astype(np.float64)
    values = np.nan_to_num(values, nan=1.0, posinf=1.0, neginf=-1.0)
    values = np.where(np.abs(values) > _LARGE, np.sign(values), values)
    magnitudes, squares = np.abs(values), np.square(values)
    return TensorDigest(
        n_elements=values.size,
        total=float(values.sum()),
        magnitude=float(magnitudes.sum()),
        square=float(squares.sum()),
        quartic=float(np.square(squares).sum()),
        largest=float(magnitudes.max(initial=0.0)),
        weighted=float(values @ np.cos(np.arange(values.size))),
    )

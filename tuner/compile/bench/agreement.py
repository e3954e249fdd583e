"""Comparison of the outputs of a library with a peer's, element by element.

Two scores of a TopK or an ArgMax can be less than one rounding apart, and a small element can be
what is left of large ones. No tolerance of elements describes that. So where outputs differ, the
network is computed in float64, and again with other roundings of its own precision: an element is
right if it is as near to the exact one as roundings explain.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from tuner.library.arrays import Array
from tuner.networks.base import PRECISIONS

# Factor of the change by roundings that is allowed around each answer. The change is the distance
# over which the closest third of the answers spreads: where a near-tie lets an element jump, the
# answers of one side are closer than that. It takes a few answers.
_MARGIN = 8.0
_MIN_ANSWERS = 5

#: Outputs of a network, in order.
Outputs = Sequence[Array]


@dataclass(frozen=True)
class Tolerance:
    """Largest error of one element: a share of the element and a share of its output's spread.

    Attributes:
        relative: Share of the magnitude of the element.
        of_spread: Share of the spread of the output; see :func:`spread_of`.
    """

    relative: float
    of_spread: float


#: By the coarsest precision that the network computes in; docs/measuring.md has the reasons.
TOLERANCES = {
    "float64": Tolerance(1e-7, 1e-6),
    "float32": Tolerance(1e-4, 1e-3),
    "float16": Tolerance(1e-2, 1e-1),
    "bfloat16": Tolerance(5e-2, 2e-1),
    "quantised": Tolerance(5e-2, 2e-1),
}

# Runtimes compute the sigmoid of float32 and narrower types as 0.5 plus a fraction of polynomials,
# which rounds every result as it rounds one; ONNX Runtime 1.31 errs by up to 1.4 epsilons.
_SIGMOID_ERROR = 2 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class OutputCheck:
    """The comparison of one output.

    Attributes:
        name: Name of the output in the library.
        n_differing: Elements with an error above their tolerance, with a NaN or infinity that
            the peer does not have, or, of whole numbers, that are not equal.
        n_not_finite: Those of ``n_differing`` with a NaN or infinity on either side.
        n_near_ties: Elements that differ from the peer and that float64 confirms, which do not
            count as differing; see :mod:`tuner.compile.bench.agreement`.
        absolute_error: Largest absolute error of the elements that are finite on both sides.
        worst: Largest error as a share of the tolerance of its element; above 1 it differs.
        is_constant: True if all elements are equal, within the error of a sigmoid for one, or not
            finite, so that agreement proves little.
        problem: Difference of shape or dtype, of which nothing else was compared; empty if none.
    """

    name: str
    n_elements: int
    n_differing: int = 0
    n_not_finite: int = 0
    n_near_ties: int = 0
    absolute_error: float = 0.0
    worst: float = 0.0
    is_constant: bool = False
    problem: str = ""

    @property
    def agrees(self) -> bool:
        """True if no element differs."""
        return not self.problem and self.n_differing == 0


def compare_output(
    name: str, actual: Array, expected: Array, precision: str, *, is_sigmoid: bool = False
) -> OutputCheck:
    """Compare an output with that of a peer.

    Floats may differ by the tolerance of their dtype, or of ``precision`` if that is coarser.
    NaN must be where the peer has NaN, infinities where it has the same infinity. Whole numbers
    and booleans must be equal.

    Args:
        actual: Output of the library.
        expected: Output of the peer; float32 for a bfloat16 one.
        precision: Coarsest precision that the network computes in.
        is_sigmoid: True if elements are results of a Sigmoid, whose error is that of one however
            small they are.
    """
    wide = np.float32 if actual.dtype == ml_dtypes.bfloat16 else actual.dtype
    problem = ""
    if actual.shape != expected.shape:
        problem = f"shape {actual.shape}, and {expected.shape} in the peer"
    elif wide != expected.dtype:
        problem = f"dtype {actual.dtype}, and {expected.dtype} in the peer"
    if problem:
        return OutputCheck(name, actual.size, problem=problem)
    if is_float(actual):
        least = smallest_tolerance(actual, is_sigmoid=is_sigmoid)
        shares = error_shares(actual, expected, precision, least)
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
        finite, same = _agreement(actual, expected)
        return OutputCheck(
            name,
            actual.size,
            n_differing=int(np.count_nonzero(shares > 1.0)),
            n_not_finite=int(np.count_nonzero(~finite & ~same)),
            absolute_error=float(np.abs(actual[finite] - expected[finite]).max(initial=0.0)),
            worst=float(shares.max(initial=0.0)),
            is_constant=_is_constant(expected, least),
        )
    # Python's integers do not overflow.
    error = np.abs(actual.astype(object) - expected.astype(object)).astype(np.float64)
    return OutputCheck(
        name,
        actual.size,
        n_differing=int(np.count_nonzero(error)),
        absolute_error=float(error.max(initial=0.0)),
        worst=float("inf") if error.any() else 0.0,
        is_constant=_is_constant(expected),
    )


def spread_of(values: Array) -> float:
    """Return the standard deviation of finite values, without their smallest and largest.

    Those are often a filling, such as the zeros of a Relu or -1e9 where scores are masked.
    """
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0
    inner = finite[(finite > finite.min()) & (finite < finite.max())]
    return float(np.std(inner if inner.size > 1 else finite))


def smallest_tolerance(actual: Array, *, is_sigmoid: bool) -> float:
    """Return the tolerance that every element of an output of floats has at least."""
    is_narrow = is_sigmoid and actual.dtype != np.float64
    # Some runtimes flush what is below the smallest normal number to zero.
    dtype = np.float32 if actual.dtype == ml_dtypes.bfloat16 else actual.dtype
    return max(_SIGMOID_ERROR if is_narrow else 0.0, float(np.finfo(dtype).smallest_normal))


def error_shares(actual: Array, expected: Array, precision: str, least: float | Array) -> Array:
    """Return the errors of floats as shares of their tolerance; above 1 they differ.

    Args:
        actual: Elements to check.
        expected: Elements to compare with, of the same shape.
        precision: Coarsest precision that the network computes in.
        least: Tolerance that each element, or all have at least.
    """
    tolerance = TOLERANCES[max(precision, str(actual.dtype), key=PRECISIONS.index)]
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite, same = _agreement(actual, expected)
    allowed = tolerance.relative * np.abs(expected) + tolerance.of_spread * spread_of(expected)
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(actual - expected))
        shares: Array = error / np.maximum(allowed, least)
    return np.where(finite | same, shares, np.inf)


def _agreement(actual: Array, expected: Array) -> tuple[Array, Array]:
    """Return which elements are finite on both sides, and which are equal or NaN on both."""
    finite = np.isfinite(actual) & np.isfinite(expected)
    return finite, (actual == expected) | (np.isnan(actual) & np.isnan(expected))


def is_float(array: Array) -> bool:
    """Return whether the elements are floating-point numbers, bfloat16 too."""
    return array.dtype.kind == "f" or bool(array.dtype == ml_dtypes.bfloat16)


def _is_constant(expected: Array, least: float = 0.0) -> bool:
    values = expected[np.isfinite(expected)].astype(np.float64)
    if expected.size < 2:
        return False
    scale = float(np.abs(values).max(initial=0.0)) or 1.0
    return not values.size or bool(np.ptp(values) < max(1e-6 * scale, least))


@dataclass(frozen=True)
class OutputPair:
    """An output of a library, and that of a peer.

    Attributes:
        actual: Output of the library.
        expected: Output of the peer; float32 for a bfloat16 one.
        precision: Coarsest precision that the network computes in.
        is_sigmoid: True if elements are results of a Sigmoid.
    """

    name: str
    actual: Array
    expected: Array
    precision: str
    is_sigmoid: bool = False

    def compare(self) -> OutputCheck:
        """Compare the output with that of the peer alone."""
        return compare_output(
            self.name, self.actual, self.expected, self.precision, is_sigmoid=self.is_sigmoid
        )

    def decide(self, answers: Outputs) -> OutputCheck:
        """Compare the output, and what differs with answers in float64.

        Args:
            answers: The exact output, then that with other roundings; none if it is unknown.
        """
        check = self.compare()
        if check.agrees:
            return check
        if not answers:
            # Without a spread, as a single element has none, it gets the error of a Sigmoid.
            has_scale = not is_float(self.expected) or spread_of(self.expected) > 0.0
            return replace(self, is_sigmoid=self.is_sigmoid or not has_scale).compare()
        answers = [answer for answer in answers if answer.shape == self.actual.shape]
        has_shape = self.actual.shape == self.expected.shape
        if not answers or (check.problem and has_shape):
            return check
        confirmed = self._confirmed(answers)
        if not has_shape:
            # A near-tie decides how many rows there are, as in NonZero.
            own = OutputCheck(self.name, self.actual.size, n_near_ties=self.actual.size)
            return own if confirmed.all() else check
        near_ties = confirmed & self._differs
        cured = np.where(near_ties, self.expected, self.actual).astype(self.actual.dtype)
        return replace(
            replace(self, actual=cured).compare(), n_near_ties=int(np.count_nonzero(near_ties))
        )

    @property
    def _differs(self) -> Array:
        if not is_float(self.actual):
            return np.asarray(self.actual != self.expected)
        least = smallest_tolerance(self.actual, is_sigmoid=self.is_sigmoid)
        return error_shares(self.actual, self.expected, self.precision, least) > 1.0

    def _confirmed(self, answers: Outputs) -> Array:
        if not is_float(self.actual):
            # A whole number of some rounding; a code of 8 bits, between those of all.
            if self.actual.dtype.kind in "iu" and self.actual.dtype.itemsize == 1:
                low, high = np.min(answers, axis=0), np.max(answers, axis=0)
                return np.asarray((low <= self.actual) & (self.actual <= high))
            return np.asarray(np.any([self.actual == each for each in answers], axis=0))
        margin = _MARGIN * _change(answers)
        least = np.maximum(margin, smallest_tolerance(self.actual, is_sigmoid=self.is_sigmoid))
        with np.errstate(over="ignore"):
            narrow = [answer.astype(self.actual.dtype) for answer in answers]
        shares = [error_shares(self.actual, each, self.precision, least) for each in narrow]
        return np.asarray(np.min(shares, axis=0) <= 1.0)


def decide(pairs: Sequence[OutputPair], answers: Iterable[Outputs]) -> tuple[OutputCheck, ...]:
    """Compare outputs with a peer's; where they differ, float64 decides.

    Args:
        pairs: Outputs of the library and of the peer.
        answers: Outputs in float64, exact at first, then with other roundings, which are computed
            as they are read; none if the network cannot be computed.
    """
    checks = tuple(pair.compare() for pair in pairs)
    if all(check.agrees for check in checks):
        return checks
    by_output: list[list[Array]] = [[] for _ in pairs]
    for outputs in answers:
        for own, output in zip(by_output, outputs, strict=True):
            own.append(output)
        checks = tuple(pair.decide(own) for pair, own in zip(pairs, by_output, strict=True))
        if all(check.agrees for check in checks):
            return checks
    return tuple(pair.decide(own) for pair, own in zip(pairs, by_output, strict=True))


def _change(answers: Outputs) -> Array:
    """Return the change of each element by roundings; 0 where too few answers are known."""
    if len(answers) < _MIN_ANSWERS:
        return np.zeros(answers[0].shape)
    width = len(answers) // 3
    ordered = np.sort(answers, axis=0)
    with np.errstate(invalid="ignore"):
        changes = (ordered[width:] - ordered[:-width]).min(axis=0)
    return np.asarray(np.nan_to_num(changes, posinf=0.0))

"""Differences from a peer that float64 decides: near-ties, and elements that cancel.

Two scores of a TopK or an ArgMax can be less than one rounding apart, and a small element can be
what is left of large ones. No tolerance of elements describes that. So the network is computed in
float64, and again with other roundings of its own precision: an element is right if it is as near
to the exact one as roundings explain.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.compile.agreement import (
    OutputCheck,
    compare_output,
    error_shares,
    is_float,
    smallest_tolerance,
    spread_of,
)
from tuner.library.arrays import Array

# Factor of the change by roundings that is allowed around each answer. The change is the distance
# over which the closest third of the answers spreads: where a near-tie lets an element jump, the
# answers of one side are closer than that. It takes a few answers.
_MARGIN = 8.0
_MIN_ANSWERS = 5

#: Outputs of a network, in order.
Outputs = Sequence[Array]


@dataclass(frozen=True)
class OutputPair:
    """An output of a library, and that of a peer.

    Attributes:
        name: Name of the output.
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
            return self._with_a_scale().compare()
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

    def _with_a_scale(self) -> "OutputPair":
        """Give an output without a spread, such as a single element, the error of one."""
        has_scale = not is_float(self.expected) or spread_of(self.expected) > 0.0
        return replace(self, is_sigmoid=self.is_sigmoid or not has_scale)


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

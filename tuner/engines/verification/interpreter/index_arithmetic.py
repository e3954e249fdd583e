"""Ranges of indices, and the terms of sums."""

from collections.abc import Mapping
from copy import copy
from typing import NamedTuple

from tuner.engines.verification.interpreter.program import (
    Block,
    Call,
    Constant,
    Expression,
    Loop,
    Program,
    Variable,
    statements,
)

Range = tuple[int, int]


class Term(NamedTuple):
    """A part of a sum: an expression times an integer."""

    factor: int
    expression: Expression


def terms_of(expression: Expression) -> list[Term]:
    """Return the terms of a sum; one if it is none."""
    if isinstance(expression, Call) and len(expression.args) == 2:
        left, right = expression.args
        if expression.operation == "Add":
            return [*terms_of(left), *terms_of(right)]
        if expression.operation == "Mul":
            for factor, other in ((left, right), (right, left)):
                if isinstance(factor, Constant) and int(factor.value) == factor.value:
                    return [
                        Term(int(factor.value) * term.factor, term.expression)
                        for term in terms_of(other)
                    ]
    return [Term(1, expression)]


class Ranges:
    """Smallest and largest values of expressions, as far as loops determine them."""

    def __init__(self, program: Program) -> None:
        self._of_variables: dict[Variable, Range] = {}
        for statement in statements(program.body):
            if isinstance(statement, Block):
                for axis in statement.axes:
                    self._of_variables[axis.variable] = (0, axis.extent - 1)
            elif isinstance(statement, Loop):
                start, extent = self.of(statement.start), self.of(statement.extent)
                if start is not None and extent is not None:
                    self._of_variables[statement.variable] = (start[0], start[1] + extent[1] - 1)

    def within(self, ranges: Mapping[Variable, Range]) -> "Ranges":
        """Return the ranges if some variables have smaller ones."""
        narrowed = copy(self)
        narrowed._of_variables = {**self._of_variables, **ranges}
        return narrowed

    def of(self, expression: Expression) -> Range | None:
        """Return the range of an expression, None if it depends on more than loops."""
        match expression:
            case Constant():
                value = int(expression.value)
                return (value, value) if value == expression.value else None
            case Variable():
                return self._of_variables.get(expression)
            case Call(operation, (left, right)):
                first, second = self.of(left), self.of(right)
                return (
                    None if first is None or second is None else _combine(operation, first, second)
                )
            case _:
                return None


def _combine(operation: str, first: Range, second: Range) -> Range | None:
    match operation:
        case "Add":
            return first[0] + second[0], first[1] + second[1]
        case "Sub":
            return first[0] - second[1], first[1] - second[0]
        case "Mul":
            products = [one * other for one in first for other in second]
            return min(products), max(products)
        case "FloorDiv" | "FloorMod" if second[0] == second[1] > 0:
            return _divided(operation, first, second[0])
        case _:
            return None


def _divided(operation: str, dividend: Range, divisor: int) -> Range:
    low, high = (end // divisor for end in dividend)
    if operation == "FloorDiv":
        return low, high
    if low == high:
        return dividend[0] % divisor, dividend[1] % divisor
    return 0, divisor - 1

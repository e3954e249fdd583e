"""Analysis of a program that tells which inputs are indices, divisors or terms of long sums."""

import math
from collections import defaultdict
from collections.abc import Iterator

from tuner.engines.verification.numbers import format_of, is_bool, is_float
from tuner.engines.verification.program import (
    Bind,
    Block,
    Branch,
    Buffer,
    Call,
    Expression,
    Load,
    Loop,
    Program,
    Store,
    Variable,
    expressions,
    statements,
)

_COMPARISONS = {"EQ", "NE", "LT", "LE", "GT", "GE"}
_DIVISIONS = {"Div", "Mod", "FloorDiv", "FloorMod"}
_SHIFTS = {"shift_left", "shift_right", "LShift", "RShift"}
_MAX_SHIFT = 7
# Numbers from which on few of them are the extreme of any.
_LONG = 16


class Limits:
    """Ranges of the integer inputs of a program, as far as their use limits them.

    An input that is part of an index stays within the smallest extent that it indexes, also when it
    is converted or stored in between. One that is compared with a loop variable stays within the
    loop, as the input of a one-hot encoding.
    """

    def __init__(self, program: Program) -> None:
        self.high: dict[Buffer, int] = {}
        self.low: dict[Buffer, int] = {}
        self._extents = _extents_of(program)
        self._sources: dict[Buffer | Variable, set[Buffer]] = defaultdict(set)
        for buffer in program.inputs:
            if not is_float(buffer.dtype) and not is_bool(buffer.dtype):
                self._sources[buffer] = {buffer}
        for statement in statements(program.body):
            self._read(statement)

    def _read(self, statement: object) -> None:
        for top in _expressions_of(statement):
            for part in expressions(top):
                self._limit(part)
        if isinstance(statement, Store) and not is_float(statement.buffer.dtype):
            self._sources[statement.buffer] |= self._inputs_in(statement.value)
        if isinstance(statement, Bind) and not is_float(statement.variable.dtype):
            self._sources[statement.variable] |= self._inputs_in(statement.value)

    def _limit(self, part: Expression) -> None:
        if isinstance(part, Load):
            for index, extent in zip(part.indices, part.buffer.shape, strict=True):
                self._limit_to(index, 0, extent - 1)
        elif isinstance(part, Call) and part.operation in _COMPARISONS:
            for one, other in (part.args, part.args[::-1]):
                loops = [self._extents[each] for each in _variables(one) if each in self._extents]
                if loops:
                    self._limit_to(other, 0, max(loops) - 1)
        elif isinstance(part, Call) and part.operation in _DIVISIONS and not is_float(part.dtype):
            for buffer in self._inputs_in(part.args[1]):
                self.low[buffer] = max(self.low.get(buffer, 1), 1)
        elif isinstance(part, Call) and part.operation in _SHIFTS:
            self._limit_to(part.args[1], 0, _MAX_SHIFT)

    def _limit_to(self, expression: Expression, low: int, high: int) -> None:
        for buffer in self._inputs_in(expression):
            self.low[buffer] = max(self.low.get(buffer, low), low)
            self.high[buffer] = min(self.high.get(buffer, high), high)

    def _inputs_in(self, expression: Expression) -> set[Buffer]:
        inputs: set[Buffer] = set()
        for part in expressions(expression):
            if isinstance(part, Load):
                inputs |= self._sources.get(part.buffer, set())
            elif isinstance(part, Variable):
                inputs |= self._sources.get(part, set())
        return inputs


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


def _extents_of(program: Program) -> dict[Variable, int]:
    return {
        axis.variable: axis.extent
        for statement in statements(program.body)
        if isinstance(statement, Block)
        for axis in statement.axes
    }


def _variables(expression: Expression) -> Iterator[Variable]:
    """Yield variables outside of indices."""
    if isinstance(expression, Variable):
        yield expression
    elif isinstance(expression, Call):
        for arg in expression.args:
            yield from _variables(arg)


def _expressions_of(statement: object) -> tuple[Expression, ...]:
    match statement:
        case Store():
            return (*statement.indices, statement.value)
        case Bind():
            return (statement.value,)
        case Branch():
            return (statement.condition,)
        case Loop():
            return (statement.start, statement.extent)
        case _:
            return ()

"""Analysis of a program that tells which values its integer inputs may have."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tuner.engines.verification.dtypes import is_bool, is_float
from tuner.engines.verification.interpreter.index_arithmetic import Ranges, terms_of
from tuner.engines.verification.interpreter.program import (
    Bind,
    Block,
    Branch,
    Buffer,
    Call,
    Constant,
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
_MAX_DIVISOR = 7


class Highs(NamedTuple):
    """Largest values of an input: one for each position along an axis.

    Attributes:
        values: As many numbers as the axis has positions; None where nothing limits.
    """

    axis: int
    values: tuple[int | None, ...]


class _Axis(NamedTuple):
    """The index of an axis of the buffer that holds values of an input."""

    number: int


class _Origin(NamedTuple):
    """An input, and by axis the position there: fixed, variable, or None for any."""

    buffer: Buffer
    places: tuple[int | Variable | _Axis | None, ...]


class Limits:
    """Ranges of the integer inputs of a program, as far as their use limits them.

    An input that is part of an index stays within the smallest extent that it indexes, also when it
    is converted or stored in between. Rows of an input may index several axes at once, as those of
    GatherND do; then each position within a row stays within the axis that it indexes. An input
    that is compared with a loop variable stays within the loop, as the input of a one-hot encoding.
    Of several inputs that form one index of a flat tensor, as those of ScatterND do, each stays
    within its own stride.

    Where a guard bounds an index, the input goes one position beyond both ends, counted from the
    end at the lower one. A guarded divisor may be 0.
    """

    def __init__(self, program: Program) -> None:
        self.low: dict[Buffer, int] = {}
        self._high: dict[Buffer, dict[tuple[int | None, ...], int]] = defaultdict(dict)
        self._extents = {
            axis.variable: axis.extent
            for statement in statements(program.body)
            if isinstance(statement, Block)
            for axis in statement.axes
        }
        self._ranges = Ranges(program)
        self._origins: dict[Buffer | Variable, set[_Origin]] = defaultdict(set)
        for buffer in program.inputs:
            if not is_float(buffer.dtype) and not is_bool(buffer.dtype):
                axes = tuple(_Axis(number) for number in range(len(buffer.shape)))
                self._origins[buffer] = {_Origin(buffer, axes)}
        for statement in statements(program.body):
            self._read(statement)

    def highs(self, buffer: Buffer) -> Highs | None:
        """Return the largest values that an input may have, or None if its use sets no limit."""
        limits = self._high.get(buffer)
        if not limits:
            return None
        rank = len(buffer.shape)
        fixed = [{places[axis] for places in limits} - {None} for axis in range(rank)]
        axis = max(range(rank), key=lambda each: len(fixed[each]), default=0)
        values: list[int | None] = [None] * (buffer.shape[axis] if rank else 1)
        for places, high in limits.items():
            place = places[axis] if rank else None
            for position in range(len(values)) if place is None else (place,):
                before = values[position]
                values[position] = high if before is None else min(before, high)
        return Highs(axis, tuple(values))

    def _read(self, statement: object) -> None:
        for top in _expressions_of(statement):
            for part in expressions(top):
                self._limit(part)
        if isinstance(statement, Store):
            for index, extent in zip(statement.indices, statement.buffer.shape, strict=True):
                self._limit_index(index, extent)
        if isinstance(statement, Store) and not is_float(statement.buffer.dtype):
            if any(_is_check(part) for part in expressions(statement.value)):
                return
            axes = {
                index: _Axis(number)
                for number, index in enumerate(statement.indices)
                if isinstance(index, Variable)
            }
            for origin in self._origins_in(statement.value):
                places = tuple(
                    axes.get(place) if isinstance(place, Variable) else place
                    for place in origin.places
                )
                self._origins[statement.buffer].add(_Origin(origin.buffer, places))
        if isinstance(statement, Bind) and not is_float(statement.variable.dtype):
            self._origins[statement.variable] |= self._origins_in(statement.value)

    def _limit(self, part: Expression) -> None:
        if isinstance(part, Load):
            for index, extent in zip(part.indices, part.buffer.shape, strict=True):
                self._limit_index(index, extent)
        elif isinstance(part, Call) and part.operation in _COMPARISONS:
            for one, other in (part.args, part.args[::-1]):
                loops = [self._extents[each] for each in _variables(one) if each in self._extents]
                if loops:
                    self._limit_to(other, 0, max(loops) - 1)
        elif isinstance(part, Call) and (guarded := _guarded(part)) is not None:
            self._limit_to(guarded[0], -guarded[1] - 1, guarded[1])
        elif isinstance(part, Call) and part.operation in _DIVISIONS and not is_float(part.dtype):
            match part.args[1]:
                case Call("Select", (_, Constant(value=1), _)):  # in place of no quotient
                    return self._limit_to(part.args[1], -_MAX_DIVISOR, _MAX_DIVISOR)
            for origin in self._origins_in(part.args[1]):
                self.low[origin.buffer] = max(self.low.get(origin.buffer, 1), 1)
        elif isinstance(part, Call) and part.operation in _SHIFTS and not _guarded(part.args[1]):
            self._limit_to(part.args[1], 0, _MAX_SHIFT)
        return None

    def _limit_to(self, expression: Expression, low: int, high: int) -> None:
        for buffer, places in self._origins_in(expression):
            self.low[buffer] = max(self.low.get(buffer, low), low)
            fixed = tuple(place if isinstance(place, int) else None for place in places)
            limits = self._high[buffer]
            limits[fixed] = min(limits.get(fixed, high), high)

    def _limit_index(self, index: Expression, n_positions: int) -> None:
        """Limit the inputs in an index to values that stay below a number of positions."""
        if _guarded(index) is not None:
            return None
        if isinstance(index, Call) and isinstance(index.args[-1], Constant):
            if index.operation == "FloorDiv":
                return self._limit_index(index.args[0], n_positions * int(index.args[-1].value))
            if index.operation == "FloorMod":
                return None
        terms = terms_of(index)
        inputs = [bool(self._origins_in(term.expression)) for term in terms]
        strides = [term.factor for term, has in zip(terms, inputs, strict=True) if has]
        if strides and min(strides) <= 0:
            return self._limit_to(index, 0, n_positions - 1)
        # Large strides first; among equal ones, loops, which the inputs have to respect.
        left = n_positions
        for term, has in sorted(
            zip(terms, inputs, strict=True), key=lambda each: (-each[0].factor, each[1])
        ):
            if has:
                n_values = max(left // term.factor // strides.count(term.factor), 1)
                self._limit_to(term.expression, 0, n_values - 1)
                if strides.count(term.factor) == 1:
                    left = min(left, term.factor)
            elif (span := self._ranges.of(term.expression)) is not None:
                left = max(left - term.factor * span[1], 1)
        return None

    def _place(
        self, place: int | Variable | _Axis | None, load: Load
    ) -> int | Variable | _Axis | None:
        """Return a position, with the load's index for that of an axis."""
        if not isinstance(place, _Axis):
            return place
        index = load.indices[place.number]
        span = self._ranges.of(index)
        if span is not None and span[0] == span[1]:
            return span[0]
        return index if isinstance(index, Variable) else None

    def _origins_in(self, expression: Expression) -> set[_Origin]:
        origins: set[_Origin] = set()
        for part in expressions(expression):
            if isinstance(part, Load):
                origins |= {
                    _Origin(origin.buffer, tuple(self._place(each, part) for each in origin.places))
                    for origin in self._origins.get(part.buffer, ())
                }
            elif isinstance(part, Variable):
                origins |= self._origins.get(part, set())
        return origins


def _guarded(expression: Expression) -> tuple[Expression, int] | None:
    """Return the index that a guard bounds, and its number of positions; None without a guard."""
    match expression:
        case Call("Cast", (Call("Min", (index, Constant() as last)),)) if "uint" in last.dtype:
            return index, int(last.value) + 1
        case _:
            return None


def _is_check(expression: Expression) -> bool:
    """Return whether an expression asks if a guard leaves an index as it is."""
    if not isinstance(expression, Call) or expression.operation != "EQ":
        return False
    return any(_guarded(arg) is not None for arg in expression.args)


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

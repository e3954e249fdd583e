"""Analysis of a program that tells what it reduces: sums, extremes, and of how many terms."""

import math

from tuner.engines.verification.dtypes import is_float
from tuner.engines.verification.interpreter.numbers import format_of
from tuner.engines.verification.interpreter.program import (
    Bind,
    Block,
    Call,
    Program,
    Store,
    expressions,
    statements,
)

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

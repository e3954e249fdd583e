"""Expressions of TIR as source code of Triton.

Floats of 16 bits are computed in float32: conversions between floats do not round.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 after it
import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.sym import Analyzer

from tuner.engines.relax.triton.expressions.kernel_blocks import (
    Block,
    KernelBlocks,
    children,
    key,
    substitute,
)
from tuner.engines.relax.triton.programs import (
    COUNTERS,
    ELEMENTS,
    KERNEL,
    WORKSPACE,
    Kernel,
    named_by_content,
)
from tuner.errors import WorkError

HALF = ("float16", "bfloat16")
# Offsets have 32 bits.
_MAX_ELEMENTS = 2**31

_INFIX = {
    **{tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.Div: "/"},
    **{tirx.EQ: "==", tirx.NE: "!=", tirx.LT: "<", tirx.LE: "<=", tirx.GT: ">", tirx.GE: ">="},
    **{tirx.And: "&", tirx.Or: "|", tirx.BitwiseAnd: "&", tirx.RShift: ">>"},
}
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or)
_OPPOSITES = {tirx.LT: tirx.GE, tirx.LE: tirx.GT, tirx.GE: tirx.LT, tirx.GT: tirx.LE}
_EXTREMES = {tirx.Max: "maximum", tirx.Min: "minimum"}
_FUNCTIONS = {
    **{name: f"tl.{name}" for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "erf")},
    **{name: f"tl.{name}" for name in ("sin", "cos", "floor", "ceil", "fma")},
    **{"fabs": "tl.abs", "abs": "tl.abs", "tanh": "_tanh", "sigmoid": "_sigmoid"},
    **{"nearbyint": "_nearbyint", "round": "_nearbyint", "log1p": "_log1p"},
}
#: Functions that sources define when they call them: parameters and body.
HELPERS = {
    # The series is exact to 1e-8 below 0.25, where the difference of exponentials cancels.
    "_tanh": """(x):
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869489))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0.0, -far, far))
""",
    "_sigmoid": """(x):
    return 1.0 / (1.0 + tl.exp(-x))
""",
    # Adding 2**23 leaves no bit behind the point; larger numbers have none.
    "_nearbyint": """(x):
    whole = (tl.abs(x) + 8388608.0) - 8388608.0
    return tl.where(tl.abs(x) < 8388608.0, tl.where(x < 0.0, -whole, whole), x)
""",
    # Kahan's correction for the rounding of 1 + x; infinity is its own.
    "_log1p": """(x):
    u = 1.0 + x
    is_own = (u == 1.0) | (x > 3.4028235e38)
    return tl.where(is_own, x, tl.log(u) * (x / tl.where(is_own, 1.0, u - 1.0)))
""",
    "_largest": """(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    "_smallest": """(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
}


class PrintError(WorkError):
    """An expression that has no form in Triton."""


@dataclass(frozen=True)
class Tile:
    """A variable of the indices that a kernel computes.

    Attributes:
        variable: Variable of TIR.
        extent: Number of its values, which begin at 0.
        code: Source of its values: a number, or a tensor that is broadcast against others.
        mask: Source of which values lie inside of the extent; empty if all do.
    """

    variable: Any
    extent: int
    code: str
    mask: str = ""


class Text(NamedTuple):
    """Source of a value, its type, and the variables that it depends on."""

    code: str
    dtype: str
    tiles: frozenset[int] = frozenset()


@dataclass
class Arguments:
    """Pointers that the kernels of a source take, by the key of their buffer, in their order."""

    function: Any
    names: dict[int, str] = field(default_factory=dict)

    def name(self, buffer: Any) -> str:
        """Return the name of the pointer to an argument of the workload.

        Raises:
            PrintError: If the buffer is not an argument, or too large for its offsets.
        """
        keys = [key(each) for each in self.function.params]
        if key(buffer) not in keys:
            raise PrintError(f"{buffer.name} is neither an argument nor computed by a block")
        n_elements = 1
        for size in buffer.shape:
            n_elements *= int(size)
        if n_elements >= _MAX_ELEMENTS:
            raise PrintError(f"{buffer.name} has too many elements")
        return self.names.setdefault(key(buffer), f"p{keys.index(key(buffer))}")


@dataclass
class Printer:
    """Source of values, in one place of a kernel.

    Attributes:
        blocks: Blocks of the workload, which are inlined.
        tiles: Variables of the indices.
        arguments: Pointers, which printing adds to.
        known: Elements that were computed before, with their indices, by the key of the buffer.
        helpers: Names of the helpers that were called.
        lines: Statements that compute the values.
        loads: Variables that values depend on which are loads, by their name.
        prefix: Beginning of the names of values.
    """

    blocks: KernelBlocks
    tiles: Sequence[Tile]
    arguments: Arguments
    known: Mapping[int, tuple[Text, Sequence[Any]]] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    loads: dict[str, frozenset[int]] = field(default_factory=dict)
    prefix: str = "x"

    def __post_init__(self) -> None:
        self._analyzer = Analyzer()
        for tile in self.tiles:
            zero, extent = (tirx.const(n, str(tile.variable.ty.dtype)) for n in (0, tile.extent))
            self._analyzer.bind(tile.variable, Range(zero, extent))
        self._codes = {key(tile.variable): tile for tile in self.tiles}
        self._elements: dict[Any, Text] = {}

    def element(self, buffer: Any, indices: Sequence[Any], masks: Sequence[Text] = ()) -> Text:
        """Print an element of a buffer: a load, or the value that its block computes.

        Args:
            buffer: Argument of the workload, or a buffer that a block computes.
            indices: Indices, by the variables of the tiles.
            masks: Conditions under which the element is read.

        Raises:
            PrintError: If it cannot be computed here.
        """
        indices = [self.simplified(index) for index in indices]
        if key(buffer) in self.known:
            text, there = self.known[key(buffer)]
            if list(map(str, map(self.simplified, there))) != list(map(str, indices)):
                raise PrintError(f"{buffer.name} is read where it was not computed")
            return text
        called = (key(buffer), *map(str, indices), *(mask.code for mask in masks))
        if called not in self._elements:
            block = self.blocks.blocks.get(key(buffer))
            if block is None:
                self._elements[called] = self._load(buffer, indices, masks)
            else:
                values = block.at(indices)
                if values is None:
                    raise PrintError(f"{buffer.name} is not computed elementwise")
                if block.reduced:
                    self._elements[called] = self.reduction(block, values)
                    return self._elements[called]
                variables = [axis.variable for axis in block.axes]
                text = self.value(block.value, values, variables, masks)
                self._elements[called] = self._assigned(text)
        return self._elements[called]

    def reduction(self, block: Block, _values: dict[int, Any]) -> Text:
        """Print an element that a reduction computes, given the axes that are not summed over.

        Raises:
            PrintError: If it cannot be computed here.
        """
        raise PrintError(f"{block.buffer.name} is not computed elementwise")

    def offset(self, buffer: Any, indices: Sequence[Any], masks: Sequence[Text] = ()) -> Text:
        """Print the offset of an element of an argument; see :meth:`element`."""
        offset: Any = tirx.const(0, "int64")
        for index, size in zip(indices, buffer.shape, strict=True):
            offset = offset * size + index
        return self.index(offset, masks)

    def value(
        self, expr: Any, values: dict[int, Any], variables: Sequence[Any], masks: Sequence[Text]
    ) -> Text:
        """Print an expression.

        Args:
            values: Indices that its variables stand for, by key.
            masks: Conditions under which it is needed.

        Raises:
            PrintError: If a part of it has no form in Triton.
        """
        return _Expression(self, values, variables, masks).print(expr)

    def index(self, expr: Any, masks: Sequence[Text] = ()) -> Text:
        """Print an index by the variables of the tiles, and by numbers that it loads.

        Args:
            masks: Conditions under which it is needed.

        Raises:
            PrintError: If it divides what may be negative.
        """
        return self._index(self.simplified(expr), masks)

    def simplified(self, expr: Any) -> Any:
        """Simplify an index within the ranges of the variables."""
        is_index = str(expr.ty.dtype) in ("int32", "int64")
        bound = self._analyzer.const_int_bound(expr) if is_index else None
        if bound is not None and int(bound.min_value) == int(bound.max_value):
            return tirx.const(int(bound.min_value), "int64")
        return self._analyzer.simplify(expr)

    def given(self, condition: Any) -> AbstractContextManager[Any]:
        """Simplify indices where a condition on indices holds."""
        scope: AbstractContextManager[Any] = self._analyzer.constraint_scope(condition)
        return scope

    def mask_of(self, tiles: Iterable[int], masks: Sequence[Text] = ()) -> str:
        """Return the condition under which values of some tiles exist; empty if always."""
        order = [key(each.variable) for each in self.tiles]
        bounds = [self._codes[each].mask for each in sorted(tiles, key=order.index)]
        conditions = [f"({mask.code})" for mask in masks]
        return " & ".join(dict.fromkeys([each for each in bounds if each] + conditions))

    def _assigned(self, text: Text) -> Text:
        if len(text.code) < 12 or not text.tiles:  # a name, or a number
            return text
        name = f"{self.prefix}{len(self.lines)}"
        self.lines.append(f"{name} = {text.code}")
        return text._replace(code=name)

    def _load(self, buffer: Any, indices: Sequence[Any], masks: Sequence[Text]) -> Text:
        pointer = self.arguments.name(buffer)
        text = self.offset(buffer, indices, masks)
        tiles = text.tiles.union(*(mask.tiles for mask in masks))
        mask = self.mask_of(tiles, masks)
        # The mask of a load may not be larger than its pointers.
        code = text.code if tiles == text.tiles else f"{text.code} + tl.where({mask}, 0, 0)"
        guard = f", mask={mask}, other=0" if mask else ""
        loaded = Text(f"tl.load({pointer} + {code}{guard})", str(buffer.dtype), tiles)
        loaded = self._assigned(loaded)
        self.loads[loaded.code] = tiles
        return loaded

    def _index(self, expr: Any, masks: Sequence[Text]) -> Text:
        if isinstance(expr, tirx.IntImm):
            return Text(str(int(expr.value)), "int32")
        if key(expr) in self._codes:
            return Text(self._codes[key(expr)].code, "int32", frozenset([key(expr)]))
        if isinstance(expr, (tirx.FloorDiv, tirx.FloorMod)):
            if int(self._analyzer.const_int_bound(expr.a).min_value) < 0:
                raise PrintError("an index divides a negative number")
            operator = "//" if isinstance(expr, tirx.FloorDiv) else "%"
        elif isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul)):
            operator = _INFIX[type(expr)]
        elif isinstance(expr, (tirx.Min, tirx.Max)):
            a, b = self._index(expr.a, masks), self._index(expr.b, masks)
            name = _EXTREMES[type(expr)]
            return Text(f"tl.{name}({a.code}, {b.code})", "int32", a.tiles | b.tiles)
        elif _loads(expr):
            return self._assigned(self.value(expr, {}, [], masks))
        else:
            raise PrintError(f"an index is a {type(expr).__name__}")
        a, b = self._index(expr.a, masks), self._index(expr.b, masks)
        return Text(f"({a.code} {operator} {b.code})", "int32", a.tiles | b.tiles)


@dataclass
class _Expression:
    """Printer of one expression."""

    printer: Printer
    values: dict[int, Any]
    variables: Sequence[Any]
    masks: Sequence[Text]

    def print(self, expr: Any) -> Text:
        for kinds, method in self._methods:
            if isinstance(expr, kinds):
                return method(self, expr)
        if hasattr(expr, "indices") and hasattr(expr, "source"):
            indices = [substitute(each, self.values, self.variables) for each in expr.indices]
            return self.printer.element(expr.source, indices, self.masks)
        raise PrintError(f"{type(expr).__name__} has no form in Triton")

    def _number(self, expr: Any) -> Text:
        dtype = str(expr.ty.dtype)
        if dtype == "bool":
            return Text(str(bool(expr.value)), dtype)
        if isinstance(expr, tirx.IntImm):
            return Text(str(int(expr.value)), dtype)
        value = float(expr.value)
        if dtype in HALF:  # TVM holds more digits
            value = float(np.array(value, dtype))
        is_finite = value - value == 0.0
        return Text(repr(value) if is_finite else f'float("{value}")', _wide(dtype))

    def _variable(self, expr: Any) -> Text:
        return self.printer.index(substitute(expr, self.values, self.variables))

    def _cast(self, expr: Any) -> Text:
        value, dtype = self.print(expr.value), str(expr.ty.dtype)
        floats = (*HALF, "float32")
        if value.dtype in floats and dtype in floats:
            return value
        if dtype in HALF:
            dtype = "float32"
        return self._converted(value, dtype)

    def _infix(self, expr: Any) -> Text:
        dtype = str(expr.ty.dtype)
        if dtype in ("int64", "int32") and not _loads(expr):
            return self._variable(expr)
        a, b = self._wide(expr.a), self._wide(expr.b)
        if isinstance(expr, tirx.Div) and dtype not in (*HALF, "float32"):
            raise PrintError("integers are divided")
        result = "bool" if isinstance(expr, _COMPARISONS) else a.dtype
        return Text(f"({a.code} {_INFIX[type(expr)]} {b.code})", result, a.tiles | b.tiles)

    def _floor(self, expr: Any) -> Text:
        if _loads(expr):
            raise PrintError("integers are divided")
        return self._variable(expr)

    def _extreme(self, expr: Any) -> Text:
        a, b = self._wide(expr.a), self._wide(expr.b)
        nan = ", propagate_nan=tl.PropagateNan.ALL" if a.dtype == "float32" else ""
        name = _EXTREMES[type(expr)]
        return Text(f"tl.{name}({a.code}, {b.code}{nan})", a.dtype, a.tiles | b.tiles)

    def _not(self, expr: Any) -> Text:
        value = self.print(expr.a)
        return value._replace(code=f"({value.code} == 0)")

    def _select(
        self, condition: Any, on_true: Any, on_false: Any, *, is_lazy: bool = False
    ) -> Text:
        """Print a choice; both of its values exist unless it is lazy."""
        chosen = self._condition(condition)
        if chosen.code in ("True", "False"):
            return self.print(on_true if chosen.code == "True" else on_false)
        value = self._under(condition, chosen, on_true)
        # A load outside of its mask gives zero.
        is_load = hasattr(on_true, "indices") and value.code in self.printer.loads
        if is_load and _is_zero(on_false):
            return value
        if is_lazy:
            rest = chosen._replace(code=f"({chosen.code} == 0)")
            other = self._under(_negated(condition), rest, on_false)
        else:
            other = self.print(on_false)
        if value.dtype != other.dtype:
            value, other = self._to_wide(value), self._to_wide(other)
        tiles = chosen.tiles | value.tiles | other.tiles
        return Text(f"tl.where({chosen.code}, {value.code}, {other.code})", value.dtype, tiles)

    def _under(self, condition: Any, chosen: Text, expr: Any) -> Text:
        """Print an expression that is needed where a condition holds, and may not exist elsewhere.

        Args:
            condition: The condition; on indices, it bounds those of the expression.
            chosen: Its source.
        """
        inner = _Expression(self.printer, self.values, self.variables, [*self.masks, chosen])
        if _loads(condition):
            return inner.print(expr)
        with self.printer.given(substitute(condition, self.values, self.variables)):
            return inner.print(expr)

    def _condition(self, expr: Any) -> Text:
        if not _loads(expr):
            at = substitute(expr, self.values, self.variables)
            return self._plain(self.printer.simplified(at))
        return self.print(expr)

    def _plain(self, expr: Any) -> Text:
        """Print a condition on the indices of the tiles."""
        if isinstance(expr, tirx.IntImm):
            return Text(str(bool(expr.value)), "bool")
        if isinstance(expr, tirx.Not):
            value = self._plain(expr.a)
            return value._replace(code=f"({value.code} == 0)")
        if not isinstance(expr, _COMPARISONS):
            raise PrintError(f"a condition is a {type(expr).__name__}")
        is_junction = isinstance(expr, (tirx.And, tirx.Or))
        part = self._plain if is_junction else self.printer.index
        a, b = part(expr.a), part(expr.b)
        return Text(f"({a.code} {_INFIX[type(expr)]} {b.code})", "bool", a.tiles | b.tiles)

    def _call(self, expr: Any) -> Text:
        name = str(expr.op.name).rpartition(".")[2]
        if name == "if_then_else":
            return self._select(*expr.args, is_lazy=True)
        arguments = [self._wide(each) for each in expr.args]
        tiles = frozenset[int]().union(*(each.tiles for each in arguments))
        if name == "pow":
            return self._power(arguments[0], expr.args[1], tiles)
        if name in ("isnan", "isinf", "isfinite"):
            code = arguments[0].code
            infinite = f'(tl.abs({code}) == float("inf"))'
            tests = {"isnan": f"({code} != {code})", "isinf": infinite}
            tests["isfinite"] = f"(({code} - {code}) == 0.0)"
            return Text(tests[name], "bool", tiles)
        function = _FUNCTIONS.get(name, "")
        if not function or not arguments or arguments[0].dtype != "float32":
            raise PrintError(f"{name} has no form in Triton")
        if function in HELPERS:
            self.printer.helpers.add(function)
        codes = ", ".join(self._tensor(each).code for each in arguments)
        return Text(f"{function}({codes})", arguments[0].dtype, tiles)

    def _power(self, base: Text, exponent: Any, tiles: frozenset[int]) -> Text:
        value = float(getattr(exponent, "value", 0.0))
        if value not in (2.0, 3.0, 0.5):
            raise PrintError("a power has a form in Triton only for 2, 3 and 0.5")
        if value == 0.5:
            return Text(f"tl.sqrt({base.code})", base.dtype, tiles)
        return Text(f"({' * '.join([base.code] * int(value))})", base.dtype, tiles)

    def _wide(self, expr: Any) -> Text:
        return self._to_wide(self.print(expr))

    def _to_wide(self, value: Text) -> Text:
        return self._converted(value, "float32") if value.dtype in HALF else value

    def _converted(self, value: Text, dtype: str) -> Text:
        if value.dtype == dtype:
            return value
        return Text(f"{self._tensor(value).code}.to({element_type(dtype)})", dtype, value.tiles)

    def _tensor(self, value: Text) -> Text:
        """Return a value as a tensor, which numbers of Python are not."""
        if value.tiles:
            return value
        return value._replace(code=f"tl.full((), {value.code}, {element_type(value.dtype)})")

    _methods: tuple[tuple[Any, Callable[["_Expression", Any], Text]], ...] = (
        ((tirx.IntImm, tirx.FloatImm), _number),
        (tirx.Cast, _cast),
        (tuple(_INFIX), _infix),
        ((tirx.FloorDiv, tirx.FloorMod), _floor),
        ((tirx.Max, tirx.Min), _extreme),
        (tirx.Not, _not),
        (
            tirx.Select,
            lambda self, each: self._select(each.condition, each.true_value, each.false_value),
        ),
        (tvm.ir.Call, _call),
        (tirx.Var, _variable),
    )


def element_type(dtype: str) -> str:
    """Return a type of elements in Triton's language.

    Raises:
        PrintError: If Triton has none.
    """
    if dtype not in ELEMENTS:
        raise PrintError(f"Triton has no {dtype}")
    return f"tl.{dtype.replace('bool', 'int1')}"


def _negated(condition: Any) -> Any:
    """Return where a condition does not hold; bounds of an index stay bounds."""
    opposite = _OPPOSITES.get(type(condition))
    return tirx.Not(condition) if opposite is None else opposite(condition.a, condition.b)


def _wide(dtype: str) -> str:
    return "float32" if dtype in HALF else dtype


def _is_zero(expr: Any) -> bool:
    return float(getattr(expr, "value", 1.0)) == 0.0


def _loads(expr: Any) -> bool:
    """Return whether an expression reads a buffer, or is not an expression of indices."""
    if hasattr(expr, "source") and hasattr(expr, "indices"):
        return True
    if isinstance(expr, (tirx.Cast, tvm.ir.Call, tirx.Select, tirx.FloatImm)):
        return True
    return any(map(_loads, children(expr)))


def print_kernel(
    prefix: str,
    lines: Sequence[str],
    arguments: Arguments,
    helpers: Iterable[str],
    launch: tuple[int, ...],
    workspace: str = "",
) -> Kernel:
    """Return a kernel of some lines.

    Args:
        prefix: Beginning of its name.
        lines: Statements.
        arguments: Pointers that the statements use.
        helpers: Helpers that they call.
        launch: Blocks, warps, stages, and counters if there are any.
        workspace: Type of the workspace that they use as the last pointer; empty for none.
    """
    names = sorted(arguments.names.values(), key=lambda name: int(name[1:]))
    parameters = arguments.function.params
    pointers = [(name, str(parameters[int(name[1:])].dtype)) for name in names]
    if workspace:
        pointers.append((WORKSPACE, workspace))
    parts = [f"@triton.jit\ndef {name}{HELPERS[name].rstrip()}\n" for name in sorted(helpers)]
    body = "\n".join(f"    {line}" for line in lines)
    counters = [COUNTERS] if launch[3:] else []
    signature = ", ".join([*(name for name, _ in pointers), *counters])
    parts.append(f"@triton.jit\ndef {KERNEL}({signature}):\n{body}\n")
    return named_by_content(prefix, "\n\n".join(parts), tuple(pointers), launch)

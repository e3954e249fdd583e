"""Translation of TIR, which both versions of TVM spell nearly alike, into programs.

Nodes are told apart by the names of their classes, so that this module imports no compiler.
"""

import math
from typing import Any

from tuner.engines.verification.dtypes import is_float
from tuner.engines.verification.interpreter.numbers import format_of
from tuner.engines.verification.interpreter.program import (
    Axis,
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
    Statement,
    Store,
    Variable,
    statements,
)
from tuner.errors import WorkError

_REDUCTION = 2
_BINARY = {
    *("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max"),
    *("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LShift", "RShift"),
}
# Calls that return one of their arguments.
_TRANSPARENT = {"likely": 0, "assume": 0}


class Untranslatable(WorkError):  # noqa: N818  the name says what happened
    """A subgraph has a node that cannot be evaluated here."""


def translate(function: Any, *, fast_math: bool = False) -> Program:
    """Translate an unscheduled function.

    Maxima and minima are NaN where an operand is, and start at infinities instead of TVM's limits
    of the type, as those of kernels do.

    Args:
        function: A ``PrimFunc`` of either TVM.
        fast_math: True if kernels are compiled with CUDA's fast mathematics.

    Raises:
        Untranslatable: If it contains an unknown node; the message names it.
    """
    return _Translator(fast_math).program(function)


class _Translator:
    def __init__(self, fast_math: bool) -> None:
        self._fast_math = fast_math
        self._buffers: dict[Any, Buffer] = {}
        self._variables: dict[Any, Variable] = {}

    def program(self, function: Any) -> Program:
        buffer_map = getattr(function, "buffer_map", None)
        parameters = [
            self._buffer(param if buffer_map is None else buffer_map[param])
            for param in function.params
        ]
        body = self._statements(function.body)
        written = {node.buffer for node in statements(body) if isinstance(node, Store)}
        return Program(
            tuple(buffer for buffer in parameters if buffer not in written),
            tuple(buffer for buffer in parameters if buffer in written),
            body,
            tuple(self._buffers.values()),
            self._fast_math,
        )

    def _buffer(self, buffer: Any) -> Buffer:
        if buffer not in self._buffers:
            shape = tuple(int(dim) for dim in buffer.shape)
            self._buffers[buffer] = Buffer(str(buffer.name), shape, str(buffer.dtype))
        return self._buffers[buffer]

    def _variable(self, variable: Any) -> Variable:
        if variable not in self._variables:
            self._variables[variable] = Variable(str(variable.name), _dtype(variable))
        return self._variables[variable]

    def _statements(  # noqa: PLR0911  one for each kind of node
        self, node: Any
    ) -> tuple[Statement, ...]:
        match type(node).__name__:
            case "SeqStmt":
                return tuple(each for part in node.seq for each in self._statements(part))
            case "BufferStore":
                return (
                    Store(self._buffer(node.buffer), self._all(node.indices), self._(node.value)),
                )
            case "For":
                return (
                    Loop(
                        self._variable(node.loop_var),
                        self._(node.min),
                        self._(node.extent),
                        self._statements(node.body),
                    ),
                )
            case "IfThenElse":
                otherwise = () if node.else_case is None else self._statements(node.else_case)
                then = self._statements(node.then_case)
                return (Branch(self._(node.condition), then, otherwise),)
            case "Bind":
                return (Bind(self._variable(node.var), self._(node.value)),)
            case "LetStmt":
                bind = Bind(self._variable(node.var), self._(node.value))
                return (bind, *self._statements(node.body))
            case "SBlockRealize" | "BlockRealize":
                return (self._block(node),)
            case "AttrStmt" | "Allocate" | "DeclBuffer":
                return self._statements(node.body)
            case "Evaluate" if type(node.value).__name__ == "IntImm":
                return ()
            case kind:
                raise Untranslatable(f"its definition has a statement {kind}: {node!s:.200}")

    def _block(self, realize: Any) -> Block:
        block = realize.block
        if block.match_buffers:
            raise Untranslatable("its definition matches buffers")
        axes = tuple(
            Axis(
                self._variable(axis.var),
                int(axis.dom.extent),
                int(axis.iter_type) == _REDUCTION,
                self._(value),
            )
            for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
        )
        init = () if block.init is None else self._statements(block.init)
        body = self._statements(block.body)
        if len(init) == len(body) == 1:
            init = (_from_infinity(init[0], body[0]),)
        return Block(axes, self._(realize.predicate), init, body)

    def _all(self, nodes: Any) -> tuple[Expression, ...]:
        return tuple(self._(node) for node in nodes)

    def _(self, node: Any) -> Expression:  # noqa: PLR0911  one for each kind of node
        name = type(node).__name__
        if name == "IntImm":
            return Constant(int(node.value), _dtype(node))
        if name == "FloatImm":
            return Constant(float(node.value), _dtype(node))
        if name == "Var":
            return self._variable(node)
        if name in ("BufferLoad", "TensorLoad"):
            buffer = node.buffer if name == "BufferLoad" else node.source
            return Load(self._buffer(buffer), self._all(node.indices))
        if name in _BINARY:
            return Call(name, (self._(node.a), self._(node.b)), _dtype(node))
        if name == "Not":
            return Call(name, (self._(node.a),), _dtype(node))
        if name == "Cast":
            return Call(name, (self._(node.value),), _dtype(node))
        if name == "Select":
            parts = (node.condition, node.true_value, node.false_value)
            return Call("Select", self._all(parts), _dtype(node))
        if name == "Call":
            return self._call(node)
        raise Untranslatable(f"its definition has an expression {name}: {node!s:.200}")

    def _call(self, node: Any) -> Expression:
        operation = str(getattr(node.op, "name", node.op)).rpartition(".")[2]
        if operation in _TRANSPARENT:
            return self._(node.args[_TRANSPARENT[operation]])
        if operation == "if_then_else":
            operation = "Select"
        if operation == "tanh" and self._fast_math:
            operation = "fast_tanh"
        return Call(operation, self._all(node.args), _dtype(node))


def _from_infinity(start: Statement, update: Statement) -> Statement:
    """Return the start of a reduction, from an infinity instead of TVM's limit of the type."""
    if not (isinstance(start, Store) and isinstance(update, Store)):
        return start
    if not (isinstance(update.value, Call) and isinstance(start.value, Constant)):
        return start
    dtype, value = start.value.dtype, start.value.value
    infinity = {"Max": -math.inf, "Min": math.inf}.get(update.value.operation)
    if (
        infinity is None
        or not is_float(dtype)
        or value != math.copysign(format_of(dtype).largest, infinity)
    ):
        return start
    return Store(start.buffer, start.indices, Constant(infinity, dtype))


def _dtype(node: Any) -> str:
    """Return the type of a value."""
    ty = getattr(node, "ty", None)
    return str(node.dtype) if ty is None else str(ty.dtype)

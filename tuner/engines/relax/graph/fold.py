"""Constant folding of a Relax graph in numpy, and removal of permutations that cancel.

TVM's ``FoldConstant`` compiles one kernel per operator and shape, up to 43 s
for the transposed weights of Inception-v2. The operators that model importers
put on weights are one numpy call each, so they are folded here first and the
compiler sees only what is left.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 after it
import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tuner.engines.relax.ir.tensor_types import is_fixed, is_number

Array = np.ndarray[Any, Any]
Folder = Callable[[relax.Call, list[Array]], Array]

_NUMBERS = (tvm.tirx.IntImm, tvm.tirx.FloatImm)
_FLOATS = {"bfloat16", "float16", "float32", "float64"}
# The 8-bit floats are left to TVM.
FOLDABLE_DTYPES = {*_FLOATS, "int8", "uint8", "int32", "int64", "bool"}


def _shape(call: relax.Call) -> tuple[int, ...]:
    return tuple(int(dim) for dim in call.ty.shape)


def _axes(call: relax.Call) -> tuple[int, ...] | None:
    return None if call.attrs.axes is None else tuple(int(axis) for axis in call.attrs.axes)


def _axis(call: relax.Call) -> int | None:
    return None if call.attrs.axis is None else int(call.attrs.axis)


def _slice(call: relax.Call, args: list[Array]) -> Array:
    axes, *bounds = ([int(field) for field in arg.fields] for arg in call.args[1:])
    index = [slice(None)] * args[0].ndim
    for axis, *bound in zip(axes, *bounds, strict=True):
        index[axis] = slice(*bound)
    return args[0][tuple(index)]


def _take(call: relax.Call, data: Array, indices: Array) -> Array:
    mode: Literal["clip", "wrap"] = "clip" if call.attrs.mode == "clip" else "wrap"
    return np.asarray(np.take(data, indices, axis=_axis(call), mode=mode))


def _sum(call: relax.Call, array: Array) -> Array:
    axis = call.attrs.axis
    axes = None if axis is None else tuple(int(each) for each in axis)
    return np.asarray(np.sum(_extended(array), axes, keepdims=bool(call.attrs.keepdims)))


def _arange(call: relax.Call) -> Array:
    start, stop, step = (arg.value for arg in call.args)
    # The type that TVM infers for negative steps is too long.
    n = min(_shape(call)[0], math.ceil((stop - start) / step))
    return np.asarray(start + step * np.arange(n))


def _extended(array: Array) -> Array:
    """Return floating-point numbers in the widest type, for functions that NumPy approximates.

    In narrower ones it uses the vectors of the CPU, and results differ from one to the next.
    """
    return array.astype(np.longdouble) if array.dtype.name in _FLOATS else array


FOLDERS: dict[str, Folder] = {
    "relax.permute_dims": lambda call, args: np.transpose(args[0], _axes(call)),
    "relax.reshape": lambda call, args: args[0].reshape(_shape(call)),
    "relax.expand_dims": lambda call, args: args[0].reshape(_shape(call)),
    "relax.squeeze": lambda call, args: args[0].reshape(_shape(call)),
    "relax.broadcast_to": lambda call, args: np.broadcast_to(args[0], _shape(call)),
    "relax.astype": lambda call, args: args[0].astype(str(call.ty.dtype)),
    "relax.add": lambda _, args: np.add(*args),
    "relax.subtract": lambda _, args: np.subtract(*args),
    "relax.multiply": lambda _, args: np.multiply(*args),
    "relax.divide": lambda _, args: np.divide(*args),
    "relax.power": lambda _, args: np.power(*map(_extended, args)),
    "relax.maximum": lambda _, args: np.maximum(*args),
    "relax.minimum": lambda _, args: np.minimum(*args),
    "relax.less": lambda _, args: np.less(*args),
    "relax.less_equal": lambda _, args: np.less_equal(*args),
    "relax.greater": lambda _, args: np.greater(*args),
    "relax.greater_equal": lambda _, args: np.greater_equal(*args),
    "relax.equal": lambda _, args: np.equal(*args),
    "relax.not_equal": lambda _, args: np.not_equal(*args),
    "relax.logical_and": lambda _, args: np.logical_and(*args),
    "relax.logical_or": lambda _, args: np.logical_or(*args),
    "relax.logical_not": lambda _, args: np.logical_not(args[0]),
    "relax.bitwise_not": lambda _, args: np.invert(args[0]),
    "relax.where": lambda _, args: np.where(*args),
    "relax.negative": lambda _, args: np.negative(args[0]),
    "relax.sqrt": lambda _, args: np.sqrt(args[0]),
    "relax.rsqrt": lambda _, args: 1 / np.sqrt(args[0]),
    "relax.exp": lambda _, args: np.exp(_extended(args[0])),
    "relax.floor": lambda _, args: np.floor(args[0]),
    "relax.sum": lambda call, args: _sum(call, args[0]),
    # The shape itself may be a literal, which is left out of the operands.
    "relax.shape_to_tensor": lambda call, _: np.array([int(n) for n in call.args[0].ty.values]),
    "relax.strided_slice": _slice,
    "relax.arange": lambda call, _: _arange(call),
    # TVM has none of infinities and NaN.
    "relax.full": lambda call, args: np.full(_shape(call), args[0]),
    "relax.full_like": lambda call, args: np.full(_shape(call), args[-1]),
    "relax.take": lambda call, args: _take(call, *args),
    "relax.concat": lambda call, args: np.concatenate(args, _axis(call)),
}


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Mutator that folds calls on constants and drops permutations that cancel."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Fold the operands first, then the call itself."""
        visited = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") == "relax.permute_dims":
            visited = self._cancel(visited)
        folder = FOLDERS.get(getattr(call.op, "name", ""))
        if folder is None or not isinstance(visited, relax.Call):
            return visited
        values = [self._value_of(arg) for arg in self._operands(visited)]
        dtype = str(call.ty.dtype)
        if dtype not in FOLDABLE_DTYPES or any(value is None for value in values):
            return visited
        if not is_fixed(call.ty):
            return visited
        with np.errstate(all="ignore"):
            value = folder(call, [value for value in values if value is not None])
        # NumPy's ascontiguousarray turns a scalar into a vector.
        return relax.const(np.asarray(value, dtype=dtype, order="C"), dtype)

    def _cancel(self, call: relax.Call) -> relax.Expr:
        """Remove two consecutive permutations that undo each other."""
        inner: Any = None
        if isinstance(call.args[0], relax.Var):
            inner = self.lookup_binding(call.args[0])
        if getattr(getattr(inner, "op", None), "name", "") != "relax.permute_dims":
            return call
        first, second = _axes(inner), _axes(call)
        if first is None or second is None:
            return call
        if [first[axis] for axis in second] != list(range(len(first))):
            return call
        return inner.args[0]

    def _operands(self, call: relax.Call) -> list[relax.Expr]:
        """Return the tensors and shapes that a call reads, those of a tuple each on its own."""
        operands = [arg for arg in call.args if not _is_literal(arg)]
        if call.op.name == "relax.concat":
            tensors = operands[0]
            bound = self.lookup_binding(tensors) if isinstance(tensors, relax.Var) else tensors
            return list(bound.fields) if isinstance(bound, relax.Tuple) else operands
        if call.op.name == "relax.full_like":
            # The first one has nothing but the shape, and passes look for finite numbers.
            number = self._value_of(operands[1])
            return operands if number is None or np.isfinite(number).all() else operands[1:]
        if call.op.name == "relax.arange":
            return [arg for arg in operands if not isinstance(arg, _NUMBERS)]
        return operands

    def _value_of(self, arg: relax.Expr) -> Array | None:
        if isinstance(arg.ty, relax.ShapeType):
            sizes = arg.ty.values or ()
            if len(sizes) != arg.ty.ndim or not all(map(is_number, sizes)):
                return None
            return np.array([int(size) for size in sizes], np.int64)
        bound = self.lookup_binding(arg) if isinstance(arg, relax.Var) else arg
        if isinstance(bound, GenericConst) and str(bound.ty.dtype) in FOLDABLE_DTYPES:
            value: Array = bound.value.numpy()
            return value
        return None


def _is_literal(arg: relax.Expr) -> bool:
    """Return whether an argument is a shape or a list of numbers."""
    if isinstance(arg, relax.Tuple):
        return all(isinstance(field, tvm.tirx.IntImm) for field in arg.fields)
    return isinstance(arg, relax.ShapeExpr)


def fold_constants(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with every foldable call of its functions replaced by a constant."""
    return rewrite(module, _Folder(module))


def constant_value(visitor: PyExprMutator, expr: relax.Expr) -> Array | None:
    """Return the value of a constant, or of a variable that a mutator has bound to one."""
    bound = visitor.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
    return bound.value.numpy() if isinstance(bound, GenericConst) else None


def rewrite(
    module: tvm.IRModule,
    visitor: PyExprMutator,
    prepare: Callable[[relax.Function], None] = lambda _: None,
) -> tvm.IRModule:
    """Rewrite every Relax function of a module, and normalise the result.

    Leftover aliases would keep operators from fusing.

    Args:
        module: Module that the visitor was made for.
        prepare: Function that looks at each function before it is visited.
    """
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            prepare(function)
            visitor.builder_.update_func(variable, visitor.visit_expr(function))
    transform = relax.transform
    passes = [transform.Normalize(), transform.CanonicalizeBindings()]
    normalise = tvm.transform.Sequential([*passes, transform.DeadCodeElimination()])
    return normalise(visitor.builder_.get())

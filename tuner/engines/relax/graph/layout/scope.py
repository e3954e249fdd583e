"""Values with their layouts, and the conversions that rules of operators ask for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tuner.engines.relax.graph.fold import FOLDABLE_DTYPES
from tuner.engines.relax.graph.layout.layouts import Layout, common_factors
from tuner.engines.relax.ir.tensor_types import shape_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Value:
    """A tensor of a fixed shape, as it is stored.

    Attributes:
        expr: Variable or constant; its shape is ``layout.stored_shape``, except that it may lack
            or have more dimensions of extent 1.
    """

    expr: relax.Expr
    layout: Layout

    @property
    def array(self) -> Array | None:
        """The value of a constant that numpy can handle; else None."""
        expr = self.expr
        if isinstance(expr, GenericConst) and str(expr.ty.dtype) in FOLDABLE_DTYPES:
            value: Array = expr.value.numpy()
            return value
        return None

    @property
    def n_bytes(self) -> int:
        """Bytes of the tensor; 0 for a constant, which costs nothing to convert."""
        if isinstance(self.expr, GenericConst):
            return 0
        bits = int(tvm.DataType(str(self.expr.ty.dtype)).bits)
        return math.prod(self.layout.shape) * bits // 8


# The operands of a call: tensors of fixed shapes, tuples of them, and all that has no layout.
Operand: TypeAlias = Any  # Value | tuple[Value, ...] | relax.Expr


@dataclass(frozen=True)
class Stored:
    """The result of a rule.

    Attributes:
        expr: Call that computes the result as it is stored, or the variable of an operand.
        layouts: Layout of the result, or of each field of a tuple.
    """

    expr: relax.Expr
    layouts: Layout | tuple[Layout, ...]


class Scope:
    """Emission of conversions into the block under construction, each at most once.

    Args:
        builder: Block builder of the pass.
    """

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._converted: dict[tuple[Any, Layout, Layout], relax.Expr] = {}

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression to a new variable."""
        return self._builder.emit(expr)

    def forget(self) -> None:
        """Forget conversions, because the variables of a block are unknown to the next."""
        self._converted.clear()

    def logical(self, value: Value) -> relax.Expr:
        """Return the tensor as the network sees it."""
        return self.convert(value, Layout.permuted(value.layout.shape))

    def convert(self, value: Value, layout: Layout) -> relax.Expr:
        """Return a tensor in another layout.

        The layout may have more axes than the value, as in a broadcast: the first are of extent 1.
        """
        # A square tensor and its transpose are the same variable in two layouts.
        key = (value.expr, value.layout, layout)
        if key not in self._converted:
            source = value.layout.with_rank(len(layout.factors))
            if value.array is not None:
                constant = layout.apply(source_array(value).reshape(layout.shape))
                self._converted[key] = relax.const(constant, str(value.expr.ty.dtype))
            else:
                self._converted[key] = self._convert(value.expr, source, layout)
        return self._converted[key]

    def reshape(self, expr: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        """Reshape a stored tensor; no operation if it has that shape."""
        bound: Any = None
        if isinstance(expr, relax.Var):
            bound = self._builder.lookup_binding(expr)
        is_reshape = getattr(getattr(bound, "op", None), "name", "") == "relax.reshape"
        expr = bound.args[0] if is_reshape else expr
        if shape_of(expr) == tuple(shape):
            return expr
        return self.emit(relax.op.reshape(expr, tuple(shape)))

    def _convert(self, expr: relax.Expr, source: Layout, target: Layout) -> relax.Expr:
        if source.factors == target.factors and shape_of(expr) == source.stored_shape:
            order = [source.order.index(factor) for factor in target.order]
            if not _moves(order, source.stored_shape):
                return self.reshape(expr, target.stored_shape)
            return self.emit(relax.op.permute_dims(expr, order))
        pieces = [
            common_factors(own, other)
            for own, other in zip(source.factors, target.factors, strict=True)
        ]
        if any(cut is None for cut in pieces):
            plain = source.whole(range(len(source.factors)))
            return self._convert(self._convert(expr, source, plain), plain, target)
        ours, theirs = _refined(source, pieces), _refined(target, pieces)
        extents = [pieces[axis][index] for axis, index in ours]  # type: ignore[index]
        order = [ours.index(factor) for factor in theirs]
        if _moves(order, extents):
            expr = self.emit(relax.op.permute_dims(self.reshape(expr, extents), order))
        return self.reshape(expr, target.stored_shape)


def source_array(value: Value) -> Array:
    """Return the value of a constant as the network sees it."""
    array = value.array
    if array is None or not value.layout.is_identity:
        raise ValueError("only constants as the network sees them have values here")
    return array


def with_attrs(call: relax.Call, args: Sequence[relax.Expr], **changes: Any) -> relax.Call:
    """Return a call of the same operator with other operands, and some attributes changed."""
    attrs = call.attrs
    if changes:
        info = type(attrs).__tvm_ffi_type_info__
        fields = {field.name: getattr(attrs, field.name) for field in info.fields}
        attrs = tvm.ir.make_node(info.type_key, **(fields | changes))
    return relax.Call(call.op, list(args), attrs, call.ty_args)


def _refined(layout: Layout, pieces: Sequence[list[int] | None]) -> list[tuple[int, int]]:
    """Return the order of the pieces of each axis, extents of 1 left out."""
    order = []
    taken: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for axis, factors in enumerate(layout.factors):
        number = 0
        for index, extent in enumerate(factors):
            own, product = [], 1
            while product < extent:
                own.append((axis, number))
                product *= pieces[axis][number]  # type: ignore[index]
                number += 1
            taken[(axis, index)] = own
    for factor in layout.order:
        order += taken[factor]
    return order


def _moves(order: Sequence[int], extents: Sequence[int]) -> bool:
    """Return True if a permutation moves elements, not just axes of extent 1."""
    kept = [dim for dim in order if extents[dim] != 1]
    return kept != sorted(kept)


Rule = Callable[[Scope, relax.Call, Sequence[Operand]], Stored | None]

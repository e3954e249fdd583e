"""Scatters that TVM's kernels write to other places than intended.

The kernels count positions in front of the axis of the scatter, and behind it, by the lengths of
the indices. They are those of the data if the two differ on the first axis of either group alone.

The kernels add the indices of all axes up, so that one outside of its axis is a position of another
row. Here it becomes a position in front of the tensor, where the guard of the write drops it.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.definitions.guards import is_inside
from tuner.engines.relax.graph.layout.scope import with_attrs
from tuner.engines.relax.graph.passes.visitor import CallVisitor, name_of
from tuner.engines.relax.ir.tensor_types import shape_of


@mutator
class ScatterSplitter(CallVisitor):
    """Mutator that scatters to the part of a tensor that the indices cover, and joins the rest.

    It cuts the data along every axis that its kernel misreads. Constants must not be folded
    before: TVM folds a scatter by the same kernel.
    """

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Split one scatter; one that its kernel reads right stays."""
        return self._split(call) if name_of(call) == "scatter_elements" else call

    def _split(self, call: relax.Call) -> relax.Expr:
        data, indices, updates = call.args
        axis = _misread_axis(call)
        if axis is None:
            return call
        end, size = (shape_of(value)[axis] for value in (indices, data))
        part, rest = (
            self.emit(relax.op.strided_slice(data, axes=[axis], begin=[first], end=[last]))
            for first, last in ((0, end), (end, size))
        )
        scattered = self.emit(self._split(with_attrs(call, [part, indices, updates])))
        return relax.op.concat([scattered, rest], axis)


def _scatter_elements(
    data: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int, reduction: str
) -> te.Tensor:
    size = int(data.shape[axis % len(data.shape)])

    def position(*at: Any) -> Any:
        index = indices(*at).astype("int64")
        return _inside(tirx.Select(index < 0, index + size, index), size, data)

    sound = te.compute(indices.shape, position, "index")
    return _kernels().scatter_elements(data, sound, updates, axis, reduction)


def _scatter_nd(
    data: te.Tensor, indices: te.Tensor, updates: te.Tensor, reduction: str
) -> te.Tensor:
    *rows, n_axes = indices.shape

    def position(axis: Any, *at: Any) -> Any:
        index = indices(*at, axis).astype("int64")
        *others, last = (_inside(index, size, data) for size in data.shape[: int(n_axes)])
        for number, each in enumerate(others):
            last = tirx.Select(axis == number, each, last)
        return last

    sound = te.compute((n_axes, *rows), position, "index")
    return _kernels().scatter_nd(data, sound, updates, reduction)


def _index_put(
    data: te.Tensor, indices: list[te.Tensor], values: te.Tensor, accumulate: bool
) -> te.Tensor:
    def checked(index: te.Tensor, size: Any) -> te.Tensor:
        def position(*at: Any) -> Any:
            return _inside(index(*at).astype("int64"), size, data)

        return te.compute(index.shape, position, "index")

    sound = [checked(*each) for each in zip(indices, data.shape, strict=True)]
    if not accumulate:
        return topi.index_put(data, sound, values)
    # The kernel adds in many threads, of which two may add to one element at once.
    shape = np.broadcast_shapes(*([int(n) for n in index.shape] for index in indices))
    *others, last = (topi.broadcast_to(index, shape) for index in sound)

    def place(axis: Any, *at: Any) -> Any:
        number = last(*at)
        for n, each in enumerate(others):
            number = tirx.Select(axis == n, each(*at), number)
        return number

    places = te.compute((len(sound), *shape), place, "place")
    return _kernels().scatter_nd(data, places, topi.reshape(values, shape), "add")


def _kernels() -> Any:
    """Return the module with TVM's kernels for the current target."""
    target = tvm.target.Target.current(allow_none=True)
    return topi.gpu if target is not None and "gpu" in target.keys else topi


def _inside(index: Any, size: Any, data: te.Tensor) -> Any:
    """Return an index, or one in front of the tensor, independent of other axes."""
    n_elements = math.prod(int(each) for each in data.shape)
    return tirx.Select(is_inside(index, int(size)), index, tirx.const(-2 * n_elements, "int64"))


def _misread_axis(call: relax.Call) -> int | None:
    """Return the first axis on which the kernel of a scatter takes the indices for the data."""
    data, indices = (shape_of(value) for value in call.args[:2])
    axis = int(call.attrs.axis) % len(data)
    pairs = enumerate(zip(indices, data, strict=True))
    misread = (n for n, (some, size) in pairs if 0 < some < size and n not in (0, axis, axis + 1))
    return next(misread, None)


def _legalise_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    extra = (int(call.attrs.axis), str(call.attrs.reduction))
    return _call(builder, _scatter_elements, (*call.args, *extra))


def _legalise_nd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _call(builder, _scatter_nd, (*call.args, str(call.attrs.reduction)))


def _legalise_put(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, indices, values = call.args
    fields = [*indices.fields] if isinstance(indices, relax.Tuple) else [indices]
    return _call(builder, _index_put, (data, fields, values, bool(call.attrs.accumulate)))


def _call(builder: relax.BlockBuilder, define: Callable[..., te.Tensor], args: Any) -> relax.Expr:
    return builder.call_te(define, *args, primfunc_name_hint=define.__name__.removeprefix("_"))


#: Legalisations by operator.
SCATTERS: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    "relax.index_put": _legalise_put,
    "relax.scatter_elements": _legalise_elements,
    "relax.scatter_nd": _legalise_nd,
}

"""Converters for indices of torch, which count from the end where they are negative.

TVM's importer passes them on to operators that read outside of the tensor then.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tvm import relax


def _convert_select(node: Any, importer: Any) -> relax.Expr:
    source, axis, index = node.args
    size = source.meta["val"].shape[axis]
    index = relax.const(index + size if index < 0 else index, "int64")
    return importer.block_builder.emit(relax.op.take(importer.env[source], index, axis))


def _convert_index(node: Any, importer: Any) -> relax.Expr:
    return importer._index_tensor(_counted_from_start(node, importer))


def _convert_index_put(node: Any, importer: Any) -> relax.Expr:
    return importer._index_put(_counted_from_start(node, importer))


def _counted_from_start(node: Any, importer: Any) -> SimpleNamespace:
    """Return a node with the same operands, whose indices are not negative."""
    source, indices, *others = node.args
    shape = source.meta["val"].shape
    counted = [
        None if index is None else _wrap(importer.env[index], size)
        for index, size in zip(indices, shape, strict=False)
    ]
    return SimpleNamespace(target=node.target, args=(source, counted, *others), kwargs=node.kwargs)


def _wrap(index: relax.Expr, size: int) -> relax.Expr:
    dtype = str(index.ty.dtype)
    if dtype == "bool":
        return index
    is_negative = relax.op.less(index, relax.const(0, dtype))
    return relax.op.where(is_negative, index + relax.const(size, dtype), index)


#: Converters by name of the operator.
CONVERTERS: dict[str, Callable[[Any, Any], relax.Expr]] = {
    "index.Tensor": _convert_index,
    "index_put.default": _convert_index_put,
    "select.int": _convert_select,
}

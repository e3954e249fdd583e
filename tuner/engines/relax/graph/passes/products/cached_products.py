"""Products of few rows with computed matrices, as in the steps of a decoder with a cache.

A step multiplies one row of each head with all keys, then with all values. Networks repeat keys
and values for the heads that share them, and transpose the keys: copies of the whole cache for
each token. Here the heads that share a matrix are rows of one product, and the product reads keys
as they are stored. Kernels of GPUs read any transposed matrix so.
"""

from typing import Any

from tvm import relax, te
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.attention import REGION
from tuner.engines.relax.graph.passes.visitor import CallVisitor, dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of

# From here on, more rows are worth a copy of the matrix in another order.
_MANY_ROWS = 16
# Terms that a vector adds at least.
_VECTOR = 8
_MATRIX = 2
_RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze")

Shape = tuple[int, ...]


@mutator
class CacheReader(CallVisitor):
    """Mutator of products of few rows whose second operand is repeated or transposed."""

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Rewrite one product."""
        if name_of(call) != "matmul":
            return call
        rows, matrix = call.args
        shapes = shape_of(rows), shape_of(matrix)
        if min(map(len, shapes)) <= _MATRIX or shapes[0][:-_MATRIX] != shapes[1][:-_MATRIX]:
            return call
        dtypes = {dtype_of(each) for each in (rows, matrix, call)}
        if dtypes != {"float32"} or shapes[0][-2] >= _MANY_ROWS:
            return call
        stored, is_transposed = _stored(self, matrix)
        if is_transposed and shapes[0][-1] % _VECTOR:
            return call
        shared = self._shared(stored)
        if shared is not None:
            lead = shape_of(shared)[:-_MATRIX]
            n_rows = shapes[0][-2] * shapes[0][-3] // lead[-1]
            rows = self.emit(relax.op.reshape(rows, (*lead, n_rows, shapes[0][-1])))
        elif not is_transposed:
            return call
        product = self._product(rows, stored if shared is None else shared, is_transposed)
        return relax.op.reshape(self.emit(product), shape_of(call))

    def _shared(self, expr: relax.Expr) -> relax.Expr | None:
        """Return the matrices that a value repeats for several heads, or None."""
        merged = self.producer(expr, *_RESHAPES)
        repeated = None if merged is None else self.producer(merged.args[0], "relax.broadcast_to")
        if merged is None or repeated is None:
            return None
        shape, source, full = (shape_of(each) for each in (expr, repeated.args[0], repeated))
        if len(full) != len(shape) + 1 or source != (*full[:-3], 1, *full[-2:]):
            return None
        *outer, n_shared, n_repeats, n_rows, n_columns = full
        if shape != (*outer, n_shared * n_repeats, n_rows, n_columns):
            return None
        once = (*outer, n_shared, n_rows, n_columns)
        return self.emit(relax.op.reshape(repeated.args[0], once))

    def _product(self, rows: relax.Expr, matrix: relax.Expr, is_transposed: bool) -> relax.Expr:
        if not is_transposed:
            return relax.op.matmul(rows, matrix)
        if shape_of(rows)[-2] >= _MANY_ROWS:
            rank = len(shape_of(matrix))
            axes = [*range(rank - _MATRIX), rank - 1, rank - 2]
            return relax.op.matmul(rows, self.emit(relax.op.permute_dims(matrix, axes)))
        return _product_of_rows(self, rows, matrix, "float32")


@mutator
class TransposeReader(CallVisitor):
    """Mutator of products, outside of regions, whose second operand is transposed."""

    def prepare(self, function: relax.Function) -> None:
        """Look whether a function is a region, such as attention."""
        self._is_region = REGION in (function.attrs or {})

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Rewrite one product."""
        if name_of(call) != "matmul" or self._is_region:
            return call
        rows, matrix = call.args
        stored, is_transposed = _stored(self, matrix)
        lead = shape_of(rows)[:-_MATRIX], shape_of(stored)[:-_MATRIX]
        if not is_transposed or len(shape_of(rows)) < _MATRIX or lead[1] not in ((), lead[0]):
            return call
        return _product_of_rows(self, rows, stored, dtype_of(call))


def _stored(visitor: CallVisitor, matrix: relax.Expr) -> tuple[relax.Expr, bool]:
    """Return the operand of a transpose of the last two axes; others as they are."""
    call = visitor.producer(matrix, "relax.permute_dims")
    if call is None or len(shape_of(matrix)) < _MATRIX:
        return matrix, False
    axes = list(range(len(shape_of(matrix))))
    *outer, last, other = call.attrs.axes or axes[::-1]
    is_transpose = [*map(int, outer), int(other), int(last)] == axes
    return (call.args[0], True) if is_transpose else (matrix, False)


def _product_of_rows(
    visitor: CallVisitor, rows: relax.Expr, columns: relax.Expr, dtype: str
) -> relax.Expr:
    """Return the product of two matrices that are stored by rows, which is summed in a type."""
    left, right = (
        te.placeholder(shape_of(each), dtype_of(each), name=name)
        for each, name in ((rows, "rows"), (columns, "columns"))
    )
    term = te.reduce_axis((0, left.shape[-1]), name="term")
    shape = (*shape_of(rows)[:-1], shape_of(columns)[-2])

    def element(*place: Any) -> Any:
        *lead, row, column = place
        first = left(*lead, row, term)
        second = right(*lead[: len(right.shape) - _MATRIX], column, term)
        return te.sum(first.astype(dtype) * second.astype(dtype), axis=term)

    product = te.compute(shape, element, name="matmul")
    function = te.create_prim_func([left, right, product], index_dtype_override="int64")
    name = visitor.builder_.add_func(function.without_attr("global_symbol"), "matmul")
    return relax.call_tir(name, (rows, columns), relax.TensorType(shape, dtype))

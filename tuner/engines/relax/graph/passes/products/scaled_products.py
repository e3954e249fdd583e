"""Constant factors of products, folded into their weights and biases.

Exported attention scales queries and keys where they leave their products, and networks with layer
scale multiply each column of a product by a constant. Folded, the factor costs nothing, and
products of the same rows can be merged.
"""

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import (
    Array,
    CallVisitor,
    const,
    dtype_of,
    is_of_columns,
    name_of,
)
from tuner.engines.relax.ir.tensor_types import shape_of

_MATRIX = 2


@mutator
class FactorFolder(CallVisitor):
    """Mutator that rewrites ``(x @ w + b) * f`` with constants to ``x @ (w * f) + b * f``."""

    def rewrite(self, original: relax.Call, call: relax.Call) -> relax.Expr:
        """Fold one factor; all else stays."""
        name = name_of(call)
        if name not in ("multiply", "divide") or dtype_of(call) != "float32":
            return call
        places = (0,) if name == "divide" else (0, 1)
        for place in places:
            factor = self.constant(call.args[1 - place])
            if factor is None or self.n_uses[original.args[place]] != 1:
                continue
            with np.errstate(divide="ignore"):
                exact = factor.astype(np.float64)
                exact = 1 / exact if name == "divide" else exact
            if shape_of(call) != shape_of(call.args[place]):
                continue  # the factor adds an axis
            folded = self._fold(call.args[place], exact)
            if folded is not None:
                return folded
        return call

    def _fold(self, scaled: relax.Expr, factor: Array) -> relax.Expr | None:
        """Return a product with a factor in its weights; None if it is no such product."""
        shape = shape_of(scaled)
        if len(shape) != _MATRIX or not is_of_columns(factor, shape[-1]):
            return None
        width = shape[-1]
        product, bias = self._split(scaled, width)
        weight = None if product is None else self.constant(product.args[1])
        if product is None or weight is None or weight.ndim != _MATRIX:
            return None
        values = [weight] if bias is None else [weight, bias]
        exact = [value.astype(np.float64) * factor.reshape(-1) for value in values]
        limit = np.finfo(np.float32).max
        if not all((np.abs(value) <= limit).all() for value in exact):
            return None  # NaN and infinity are results of the network
        result = relax.op.matmul(product.args[0], const(exact[0], "float32"))
        if bias is None:
            return result
        return relax.op.add(self.emit(result), const(exact[1], "float32"))

    def _split(self, expr: relax.Expr, width: int) -> tuple[relax.Call | None, Array | None]:
        """Return a product of float32, and the constant of each column that is added to it."""
        product = self.producer(expr, "relax.matmul")
        if product is not None:
            return (product if _is_float(product) else None), None
        added = self.producer(expr, "relax.add")
        for operand, other in () if added is None else (added.args, added.args[::-1]):
            bias, product = self.constant(other), self.producer(operand, "relax.matmul")
            if bias is None or product is None or not _is_float(product):
                continue
            if self.n_uses.get(self.source(operand), 1) == 1 and is_of_columns(bias, width):
                return product, np.broadcast_to(bias.reshape(-1), (width,))
        return None, None


def _is_float(product: relax.Call) -> bool:
    return dtype_of(product) == dtype_of(product.args[0]) == "float32"

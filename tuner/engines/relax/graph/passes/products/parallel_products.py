"""Constant factors folded into products, and products of one input as one product.

Exported attention scales queries and keys where they leave their products, and networks with layer
scale multiply each column of a product by a constant. Folded, the factor costs nothing, and
products of the same rows can be merged.

Attention computes queries, keys and values from the same rows. One product with the three matrices
side by side starts one kernel instead of three and reads the rows once; its parts are sliced where
they are reshaped into heads, which copies them anyway. Biases and factors are vectors of the
columns, with zeros and ones where a part has none.
"""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import (
    Array,
    CallVisitor,
    const,
    dtype_of,
    is_of_columns,
    name_of,
    uses_of,
)
from tuner.engines.relax.ir.tensor_types import shape_of

# Operators that move data: they copy the slice of a product at no further cost.
_MOVEMENTS = {"reshape", "permute_dims", "strided_slice", "split", "squeeze", "expand_dims"}
# Operators between a product and the movement, in their order, and the constants without effect.
_ON_COLUMNS = {
    "add": (relax.op.add, 0.0),
    "multiply": (relax.op.multiply, 1.0),
    "divide": (relax.op.divide, 1.0),
}
_MATRIX = 2


@dataclass(frozen=True, eq=False)
class _Branch:
    """One product with constant weights, and the constants of its columns.

    Attributes:
        product: Variable of the product.
        result: Variable of the product after its constants.
        weight: Matrix, shape (inputs, outputs).
        constants: Numbers of the columns, shape (outputs,), by the operator that takes them.
    """

    product: relax.Var
    result: relax.Var
    weight: relax.Expr
    constants: dict[str, Array]


@mutator
class ProductMerger(CallVisitor):
    """Mutator that merges products of the same rows whose results are only moved.

    It emits a merged product at its first part, and slices at every part.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._bound: dict[relax.Var, relax.Expr] = {}
        self._users: dict[relax.Var, list[relax.Var]] = {}
        # The group of every branch and its place there, by the call of its result.
        self._places: dict[relax.Call, tuple[tuple[_Branch, ...], int]] = {}
        self._merged: dict[tuple[_Branch, ...], relax.Var] = {}

    def prepare(self, function: relax.Function) -> None:
        """Group the products of a function by their rows."""
        super().prepare(function)
        self._bound, self._users = uses_of(function)
        groups: dict[tuple[relax.Var, int], list[_Branch]] = {}
        for variable, bound in self._bound.items():
            branch = self._branch(variable, bound)
            if branch is not None:
                rows = self._source(bound.args[0])
                groups.setdefault((rows, shape_of(bound)[0]), []).append(branch)
        for group in map(tuple, groups.values()):
            dtypes = {dtype_of(branch.result) for branch in group}
            if len(group) > 1 and len(dtypes) == 1:
                for place, branch in enumerate(group):
                    self._places[self._bound[branch.result]] = (group, place)

    def rewrite(self, original: relax.Call, call: relax.Call) -> relax.Expr:
        """Replace the result of a branch by its slice of the merged product."""
        if original not in self._places:
            return call
        group, place = self._places[original]
        if group not in self._merged:
            dtype = dtype_of(group[0].result)
            rows = self.visit_expr(self._bound[group[0].product].args[0])
            weights = [self._known(branch.weight) for branch in group]
            merged = self.emit(relax.op.matmul(rows, const(np.concatenate(weights, 1), dtype)))
            for name, (operator, neutral) in _ON_COLUMNS.items():
                if any(name in branch.constants for branch in group):
                    values = [
                        branch.constants.get(name, np.full(weight.shape[1], neutral))
                        for branch, weight in zip(group, weights, strict=True)
                    ]
                    merged = self.emit(operator(merged, const(np.concatenate(values), dtype)))
            self._merged[group] = merged
        widths = [shape_of(branch.result)[1] for branch in group]
        begin = sum(widths[:place])
        return relax.op.strided_slice(
            self._merged[group], axes=[1], begin=[begin], end=[begin + widths[place]]
        )

    def _branch(self, variable: relax.Var, bound: relax.Expr) -> _Branch | None:
        """Return the product that a variable holds, if its result is only moved."""
        if not isinstance(bound, relax.Call) or name_of(bound) != "matmul":
            return None
        rows, weight = bound.args
        if not isinstance(rows, relax.Var) or len(shape_of(weight)) != _MATRIX:
            return None
        if len(shape_of(rows)) != _MATRIX or dtype_of(rows) != dtype_of(bound):
            return None
        if self._value(weight) is None:
            return None
        result, constants = variable, {}
        for name in _ON_COLUMNS:
            users = self._users.get(result, [])
            value = self._constant(users[0], result, name) if len(users) == 1 else None
            if value is not None:
                result, constants[name] = users[0], value
        moved = [name_of(self._bound[user]) for user in self._users.get(result, [])]
        if not moved or not set(moved) <= _MOVEMENTS:
            return None
        return _Branch(variable, result, weight, constants)

    def _source(self, rows: relax.Var) -> relax.Var:
        """Return the variable that rows are a reshape of; themselves if they are none."""
        bound = self._bound.get(rows)
        while isinstance(bound, relax.Call) and name_of(bound) == "reshape":
            if not isinstance(bound.args[0], relax.Var):
                break
            rows = bound.args[0]
            bound = self._bound.get(rows)
        return rows

    def _constant(self, user: relax.Var, operand: relax.Var, name: str) -> Array | None:
        """Return the constant of each column that a variable adds to an operand, for instance."""
        call = self._bound[user]
        if name_of(call) != name or shape_of(call) != shape_of(operand):
            return None
        width = shape_of(operand)[1]
        for own, other in (call.args, call.args[::-1])[: 1 if name == "divide" else 2]:
            value = self._value(other)
            if own.same_as(operand) and value is not None and is_of_columns(value, width):
                return np.broadcast_to(value.reshape(-1), (width,))
        return None

    def _known(self, expr: relax.Expr) -> Array:
        value = self._value(expr)
        if value is None:
            raise TypeError(f"expected a constant, got {expr}")
        return value

    def _value(self, expr: relax.Expr) -> Array | None:
        bound = self._bound.get(expr, expr) if isinstance(expr, relax.Var) else expr
        return bound.value.numpy() if isinstance(bound, tvm.ir.GenericConst) else None


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

"""Products of one input with several matrices as one product.

Attention computes queries, keys and values from the same rows. One product with the three matrices
side by side starts one kernel instead of three and reads the rows once; its parts are sliced where
they are reshaped into heads, which copies them anyway.
"""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.rewrites.visitor import (
    Array,
    CallVisitor,
    const,
    dtype_of,
    name_of,
)
from tuner.engines.relax.tensor_types import shape_of

# Operators that move data: they copy the slice of a product at no further cost.
_MOVEMENTS = {"reshape", "permute_dims", "strided_slice", "split", "squeeze", "expand_dims"}
_MATRIX = 2


@dataclass(frozen=True, eq=False)
class _Branch:
    """One product with constant weights, and its bias.

    Attributes:
        product: Variable of the product.
        result: Variable of the product with its bias, if it has one.
        weight: Matrix, shape (inputs, outputs).
        bias: Constant over the outputs; None without one.
    """

    product: relax.Var
    result: relax.Var
    weight: relax.Expr
    bias: relax.Expr | None


def merge_products(module: tvm.IRModule) -> tvm.IRModule:
    """Merge products of the same rows whose results are only moved."""
    return _Merger(module).run(module)


@mutator
class _Merger(CallVisitor):
    """Mutator that emits a merged product at its first part, and slices at every part."""

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
        self._bound, self._users = _uses_of(function)
        groups: dict[relax.Var, list[_Branch]] = {}
        for variable, bound in self._bound.items():
            branch = self._branch(variable, bound)
            if branch is not None:
                groups.setdefault(bound.args[0], []).append(branch)
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
            products = [self.producer(arg, "relax.matmul") for arg in call.args]
            product = next((each for each in products if each is not None), call)
            is_bare = group[place].bias is None
            self._merged[group] = self._merge((call if is_bare else product).args[0], group)
        widths = [shape_of(branch.result)[1] for branch in group]
        begin = sum(widths[:place])
        return relax.op.strided_slice(
            self._merged[group], axes=[1], begin=[begin], end=[begin + widths[place]]
        )

    def _merge(self, rows: relax.Expr, group: tuple[_Branch, ...]) -> relax.Var:
        dtype = dtype_of(group[0].result)
        weights = [self._known(branch.weight) for branch in group]
        merged = self.emit(relax.op.matmul(rows, const(np.concatenate(weights, 1), dtype)))
        if all(branch.bias is None for branch in group):
            return merged
        biases = [
            np.zeros(weight.shape[1])
            if branch.bias is None
            else np.broadcast_to(self._known(branch.bias).reshape(-1), weight.shape[1])
            for branch, weight in zip(group, weights, strict=True)
        ]
        return self.emit(relax.op.add(merged, const(np.concatenate(biases), dtype)))

    def _branch(self, variable: relax.Var, bound: relax.Expr) -> _Branch | None:
        """Return the product that a variable holds, if its result is only moved."""
        if not isinstance(bound, relax.Call) or name_of(bound) != "matmul":
            return None
        rows, weight = bound.args
        shape = shape_of(weight)
        if not isinstance(rows, relax.Var) or len(shape) != _MATRIX:
            return None
        if len(shape_of(rows)) != _MATRIX or dtype_of(rows) != dtype_of(bound):
            return None
        if self._value(weight) is None:
            return None
        users = self._users.get(variable, [])
        result, bias = variable, None
        if len(users) == 1:
            added = self._bound[users[0]]
            bias = self._bias(added, variable, shape[1])
            result = users[0] if bias is not None else variable
        moved = [name_of(self._bound[user]) for user in self._users.get(result, [])]
        if not moved or not set(moved) <= _MOVEMENTS:
            return None
        return _Branch(variable, result, weight, bias)

    def _bias(self, call: relax.Expr, product: relax.Var, width: int) -> relax.Expr | None:
        """Return the constant over the outputs that a call adds to a product."""
        if not isinstance(call, relax.Call) or name_of(call) != "add":
            return None
        if shape_of(call) != shape_of(product):
            return None
        for operand, other in (call.args, call.args[::-1]):
            value = self._value(other)
            is_bias = (
                value is not None and value.size in (1, width) and value.shape[-1:] == (width,)
            )
            if operand.same_as(product) and is_bias:
                return other
        return None

    def _known(self, expr: relax.Expr) -> Array:
        value = self._value(expr)
        if value is None:
            raise TypeError(f"expected a constant, got {expr}")
        return value

    def _value(self, expr: relax.Expr) -> Array | None:
        bound = self._bound.get(expr, expr) if isinstance(expr, relax.Var) else expr
        return bound.value.numpy() if isinstance(bound, tvm.ir.GenericConst) else None


def _uses_of(
    function: relax.Function,
) -> tuple[dict[relax.Var, relax.Expr], dict[relax.Var, list[relax.Var]]]:
    """Return what every variable is bound to, and the variables whose bindings use it."""
    bound: dict[relax.Var, relax.Expr] = {}
    users: dict[relax.Var, list[relax.Var]] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            bound[binding.var] = binding.value
            for used in relax.analysis.free_vars(binding.value):
                users.setdefault(used, []).append(binding.var)
    return bound, users

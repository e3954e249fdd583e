"""Base of rewrites that look at one call at a time and at what its operands are bound to."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator

from tuner.engines.relax.graph.fold import constant_value, rewrite
from tuner.engines.relax.ir.tensor_types import is_fixed

Array = np.ndarray[Any, Any]


class CallVisitor(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Mutator whose subclasses rewrite calls, operands before the calls that use them.

    Attributes:
        n_uses: Number of uses of each variable of the original function.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.n_uses: Counter[relax.Var] = Counter()

    def run(self, module: tvm.IRModule) -> tvm.IRModule:
        """Rewrite every function of a module."""
        return rewrite(module, self, self.prepare)

    def prepare(self, function: relax.Function) -> None:
        """Count the uses of each variable of a function as an operand or result."""
        self.n_uses = Counter()

        def visit(expr: relax.Expr) -> None:
            if isinstance(expr, relax.Call):
                self.n_uses.update(arg for arg in expr.args if isinstance(arg, relax.Var))
            elif isinstance(expr, (relax.Tuple, relax.SeqExpr)):
                fields = expr.fields if isinstance(expr, relax.Tuple) else [expr.body]
                self.n_uses.update(field for field in fields if isinstance(field, relax.Var))

        relax.analysis.post_order_visit(function, visit)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite the operands first, then the call."""
        visited = self.visit_expr_post_order(call)
        if not isinstance(visited, relax.Call) or not all(
            is_fixed(expr.ty) for expr in (visited, *visited.args)
        ):
            return visited
        return self.rewrite(call, visited)

    def rewrite(self, original: relax.Call, call: relax.Call) -> relax.Expr:
        """Return a call or what replaces it.

        Args:
            original: The call as it was, whose operands :attr:`n_uses` counts.
            call: The call with rewritten operands.
        """
        raise NotImplementedError

    def producer(self, expr: relax.Expr, *names: str) -> relax.Call | None:
        """Return the call of one of some operators, of any without names, that computes a value."""
        bound: Any = expr
        while isinstance(bound, relax.Var):
            bound = self.lookup_binding(bound)
        if not isinstance(bound, relax.Call) or not hasattr(bound.op, "name"):
            return None
        return bound if not names or bound.op.name in names else None

    def constant(self, expr: relax.Expr) -> Array | None:
        """Return the value of a constant."""
        while isinstance(expr, relax.Var) and isinstance(self.lookup_binding(expr), relax.Var):
            expr = self.lookup_binding(expr)
        value: Array | None = constant_value(self, expr)
        return value

    def weight_of(self, call: relax.Call, layouts: Mapping[str, tuple[str, str]]) -> Array | None:
        """Return the constant weight of a convolution.

        Args:
            layouts: Layouts of data and weight by operator; others return None.
        """
        own = layouts.get(name_of(call))
        if own is None or own != (str(call.attrs.data_layout), str(call.attrs.kernel_layout)):
            return None
        return self.constant(call.args[1])

    def scalar(self, expr: relax.Expr) -> float | None:
        """Return the value of a constant with one element."""
        value = self.constant(expr)
        return None if value is None or value.size != 1 else float(value.reshape(-1)[0])

    def is_same(self, left: relax.Expr, right: relax.Expr) -> bool:
        """Return whether two expressions are the same value, perhaps computed twice."""
        if self.source(left).same_as(self.source(right)):
            return True
        first, second = self.producer(left), self.producer(right)
        if first is None or second is None or not first.op.same_as(second.op):
            return False
        return (
            bool(tvm_ffi.structural_equal(first.attrs, second.attrs))
            and len(first.args) == len(second.args)
            and all(self.is_same(*pair) for pair in zip(first.args, second.args, strict=True))
        )

    def source(self, expr: relax.Expr) -> relax.Expr:
        """Return the first of the variables that are names of one value."""
        while isinstance(expr, relax.Var):
            bound = self.lookup_binding(expr)
            if not isinstance(bound, relax.Var):
                return expr
            expr = bound
        return expr

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression to a new variable."""
        variable: relax.Var = self.builder_.emit(expr)
        return variable


def name_of(expr: relax.Expr) -> str:
    """Return the name of the operator of a call, without ``relax.``; empty for all else."""
    return str(getattr(getattr(expr, "op", None), "name", "")).removeprefix("relax.")


def dtype_of(expr: relax.Expr) -> str:
    """Return the type of the elements of a tensor."""
    return str(expr.ty.dtype)


def const(value: Array, dtype: str) -> relax.Expr:
    """Return a constant of a type."""
    return relax.const(np.ascontiguousarray(value).astype(dtype), dtype)


def is_of_columns(value: Array, width: int) -> bool:
    """Return whether a constant has a number for each column, or a single one."""
    return value.size == 1 or (value.size == width and value.shape[-1] == width)


def uses_of(
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

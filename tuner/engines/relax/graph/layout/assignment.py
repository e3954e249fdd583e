"""The pass that assigns a layout to every tensor of a network.

Convolutions compute channels last. From there each operator hands the layout of its operands on
by a rule of its own, so that a transpose is left only where an operator has no rule for a layout,
where operands of one operator differ, and at inputs and outputs of the network.
"""

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tuner.engines.relax.graph.fold import rewrite
from tuner.engines.relax.graph.layout.layouts import Layout, LayoutError
from tuner.engines.relax.graph.layout.rules.operators import RULES
from tuner.engines.relax.graph.layout.scope import Operand, Scope, Stored, Value


def assign_layouts(module: tvm.IRModule) -> tvm.IRModule:
    """Lay the tensors of a network out so that convolutions are channels last."""
    return rewrite(module, _Assigner(module))


@mutator
class _Assigner(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Mutator that applies the rules to one binding after the other."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._scope = Scope(self.builder_)
        # Tensors and tuples whose memory differs from what the network sees.
        self._stored: dict[relax.Var, Stored] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Bind a variable to its tensor as it is stored."""
        stored = self._store(binding.value)
        if stored is None:
            super().visit_var_binding_(binding)
            return
        expr = stored.expr
        stored = Stored(
            expr if isinstance(expr, relax.Var) else self.builder_.emit(expr), stored.layouts
        )
        self._stored[binding.var] = stored
        if not isinstance(binding.var, relax.DataflowVar):
            # Other blocks see the variable as the network does.
            del self._stored[binding.var]
            variable = self.visit_var_def(binding.var)
            self.builder_.emit_normalized(relax.VarBinding(variable, self._logical(stored)))

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """Return the tensor as the network sees it, for all that has no rule."""
        if var in self._stored:
            return self._logical(self._stored[var])
        return super().visit_dataflow_var_(var)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        """Visit a block; each emits its own conversions."""
        self._scope.forget()
        return super().visit_dataflow_block_(block)

    def _store(self, expr: relax.Expr) -> Stored | None:
        """Return an expression as its rule stores it; None where nothing changes."""
        if isinstance(expr, relax.Var):
            return self._stored.get(expr)
        if isinstance(expr, relax.TupleGetItem):
            stored = self._stored.get(expr.tuple_value)
            if stored is None or not isinstance(stored.layouts, tuple):
                return None
            return Stored(relax.TupleGetItem(stored.expr, expr.index), stored.layouts[expr.index])
        rule = RULES.get(getattr(getattr(expr, "op", None), "name", ""))
        if rule is None or not _is_fixed(expr):
            return None
        operands = [self._operand(arg) for arg in expr.args]
        try:
            return rule(self._scope, expr, operands)
        except LayoutError:
            return None

    def _operand(self, expr: relax.Expr) -> Operand:
        stored = self._stored.get(expr) if isinstance(expr, relax.Var) else None
        if stored is not None and isinstance(stored.layouts, Layout):
            return Value(stored.expr, stored.layouts)
        if isinstance(expr, relax.Tuple):
            fields = [self._operand(field) for field in expr.fields]
            if all(isinstance(field, Value) for field in fields):
                return tuple(field for field in fields if isinstance(field, Value))
        visited = self.visit_expr(expr)
        if isinstance(visited.ty, relax.TensorType) and _is_fixed(visited):
            return Value(visited, Layout.permuted([int(n) for n in visited.ty.shape]))
        return visited

    def _logical(self, stored: Stored) -> relax.Expr:
        if isinstance(stored.layouts, Layout):
            return self._scope.logical(Value(stored.expr, stored.layouts))
        fields = [
            Value(self.builder_.emit(relax.TupleGetItem(stored.expr, index)), layout)
            for index, layout in enumerate(stored.layouts)
        ]
        return relax.Tuple([self._scope.logical(field) for field in fields])


def _is_fixed(expr: Any) -> bool:
    """Return True if the type of an expression is made of tensors of fixed, positive extents."""
    return _is_fixed_type(getattr(expr, "ty", None))


def _is_fixed_type(kind: Any) -> bool:
    if isinstance(kind, relax.TupleType):
        return all(_is_fixed_type(field) for field in kind.fields)
    if not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
        return False
    return all(isinstance(n, tvm.tirx.IntImm) and int(n) > 0 for n in kind.shape)

"""Matrix products."""

import math
from collections.abc import Sequence

from tvm import relax

from tuner.engines.relax.graph.layout.layouts import Layout
from tuner.engines.relax.graph.layout.scope import Operand, Rule, Scope, Stored, Value
from tuner.engines.relax.ir.tensor_types import shape_of


def matmul(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Multiply rows in any order by a constant matrix, its rows in the order of the features."""
    data, weight = operands
    if not isinstance(data, Value) or not isinstance(weight, Value):
        return None
    layout = data.layout
    features = len(layout.factors) - 1
    if layout.is_identity or weight.array is None or len(weight.layout.shape) != 2:
        return None
    if not all(layout.is_whole(axis) for axis in range(features)) or features == 0:
        return None
    n_factors = len(layout.factors[features])
    if any(axis != features for axis, _ in layout.order[-n_factors:]):
        return None
    own = tuple((0, index) for _, index in layout.order[-n_factors:])
    rows = Layout((layout.factors[features], (weight.layout.shape[1],)), (*own, (1, 0)))
    packed = rows.apply(weight.array).reshape(weight.layout.shape)
    order = (*layout.order[:-n_factors], (features, 0))
    shape = (*layout.shape[:features], weight.layout.shape[1])
    out = Layout((*layout.factors[:features], (shape[-1],)), order)
    stored = (*out.stored_shape[:-1], math.prod(layout.factors[features]))
    expr = scope.reshape(data.expr, stored)
    constant = relax.const(packed, str(weight.expr.ty.dtype))
    if out.shape != shape_of(call):
        return None
    return Stored(relax.Call(call.op, [expr, constant], call.attrs, call.ty_args), out)


RULES: dict[str, Rule] = {"relax.matmul": matmul}

"""Converters for functions of torch that lose digits, or operands, in TVM's importer."""

from collections.abc import Callable
from typing import Any

from tvm import relax

# The series of log(1 + x) is more accurate than a sum with 1 below it.
_MAX_LOG1P_SERIES = 0.5


def _convert_log1p(node: Any, importer: Any) -> relax.Expr:
    """Convert log(1 + x), which is 2 atanh(x / (2 + x)) near 0."""
    x = importer.env[node.args[0]]
    one, two, limit = (_like(x, value) for value in (1.0, 2.0, _MAX_LOG1P_SERIES))
    near = two * relax.op.atanh(x / (x + two))
    is_near = relax.op.less(relax.op.abs(x), limit)
    return importer.block_builder.emit(relax.op.where(is_near, near, relax.op.log(x + one)))


def _convert_expm1(node: Any, importer: Any) -> relax.Expr:
    return importer.block_builder.emit(_expm1(importer.env[node.args[0]]))


def _expm1(x: relax.Expr) -> relax.Expr:
    """Return exp(x) - 1, which is tanh(x / 2) (exp(x) + 1)."""
    half = relax.op.tanh(_like(x, 0.5) * x)
    return half * (relax.op.exp(x) + _like(x, 1.0))


def _convert_elu(node: Any, importer: Any) -> relax.Expr:
    """Convert an exponential unit; TVM drops the scales of selu and celu, and digits near 0."""
    names = ("alpha", "scale", "input_scale")
    given = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    alpha, scale, input_scale = (float(given.get(name, 1.0)) for name in names)
    x = importer.env[node.args[0]]
    emit = importer.block_builder.emit
    below = _expm1(emit(x * _like(x, input_scale))) * _like(x, alpha)
    unit = relax.op.where(relax.op.greater(x, _like(x, 0.0)), x, below)
    return emit(unit * _like(x, scale))


def _like(x: Any, value: float) -> relax.Expr:
    return relax.const(value, str(x.ty.dtype))


#: Converters by name of the operator.
CONVERTERS: dict[str, Callable[[Any, Any], relax.Expr]] = {
    "elu.default": _convert_elu,
    "expm1.default": _convert_expm1,
    "log1p.default": _convert_log1p,
}

"""Activation functions of recurrent layers."""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

Activation = Callable[[Any], Any]

# Functions with the defaults of their alpha and beta; None for a function without that parameter.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "Sigmoid": (te.sigmoid, ()),
    "Tanh": (te.tanh, ()),
    "Relu": (lambda x: te.max(x, tirx.const(0, x.ty.dtype)), ()),
    "Affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "LeakyRelu": (lambda x, a: te.if_then_else(x < 0, a * x, x), (0.01,)),
    "ThresholdedRelu": (lambda x, a: te.if_then_else(x > a, x, x * 0), (1.0,)),
    "ScaledTanh": (lambda x, a, b: a * te.tanh(b * x), (1.0, 1.0)),
    "HardSigmoid": (lambda x, a, b: te.max(te.min(a * x + b, x * 0 + 1), x * 0), (0.2, 0.5)),
    "Elu": (lambda x, a: te.if_then_else(x < 0, a * (te.exp(x) - 1), x), (1.0,)),
    "Softsign": (lambda x: x / (1 + te.abs(x)), ()),
    "Softplus": (lambda x: te.max(x, x * 0) + tirx.log1p(te.exp(-te.abs(x))), ()),
}
_BY_LOWER = {name.lower(): name for name in _FUNCTIONS}


def read_activations(
    names: Sequence[str] | None,
    defaults: Sequence[str],
    n_directions: int,
    parameters: tuple[Sequence[float], Sequence[float]],
) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of each direction.

    Args:
        names: Names as the model has them, in any case; None for the defaults.
        defaults: Names that a direction has by default.
        n_directions: Number of directions.
        parameters: Values of alpha and of beta, for the functions that have them, in order.

    Raises:
        NotImplementedError: If a function is unknown.
    """
    alphas, betas = (iter(values) for values in parameters)
    functions = []
    for name in names or list(defaults) * n_directions:
        if name.lower() not in _BY_LOWER:
            raise NotImplementedError(f"activation {name}")
        function, values = _FUNCTIONS[_BY_LOWER[name.lower()]]
        given = [
            next(source, value) for source, value in zip((alphas, betas), values, strict=False)
        ]
        functions.append(_bind(function, given))
    n = len(defaults)
    return tuple(tuple(functions[i : i + n]) for i in range(0, n * n_directions, n))


def _bind(function: Callable[..., Any], values: Sequence[float]) -> Activation:
    return lambda x: function(x, *(tirx.const(value, x.ty.dtype) for value in values))

"""Definitions of the operators of programs that torch quantised, with numbers or tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

# torch registers them when a program is quantised or this module is imported.
import torch.ao.quantization.fx._decomposed


def _quantise(
    x: torch.Tensor, scale: Any, zero_point: Any, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    # A factor of float64 is rounded once.
    inverse = 1.0 / (scale.double() if isinstance(scale, torch.Tensor) else scale)
    inverse = inverse.float() if isinstance(inverse, torch.Tensor) else inverse
    return ((x.float() * inverse).round() + zero_point).clamp(low, high).to(dtype)


def _dequantise(
    x: torch.Tensor,
    scale: Any,
    zero_point: Any,
    _low: int,
    _high: int,
    _dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    dtype = out_dtype or torch.float32
    shifted = x.to(dtype) - (0 if zero_point is None else zero_point)
    return (shifted * (scale.to(dtype) if isinstance(scale, torch.Tensor) else scale)).to(dtype)


def _of_channels(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return a function with a scale and a zero of each element of an axis."""

    def convert(
        x: torch.Tensor, scale: Any, zero_point: Any, axis: int, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        shape = [-1 if each == axis % x.ndim else 1 for each in range(x.ndim)]
        zeros = None if zero_point is None else zero_point.reshape(shape)
        return function(x, scale.reshape(shape), zeros, *args, **kwargs)

    return convert


def _choose(
    x: torch.Tensor, low: int, high: int, eps: float, _: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Return the scale and the zero of the range of a tensor, which has the number 0."""
    least, largest = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = ((largest - least) / float(high - low)).clamp(min=eps)
    zero_point = (low - (least / scale).round()).clamp(low, high)
    return scale.double().reshape(1), zero_point.long().reshape(1)


_ops = torch.ops.quantized_decomposed
#: Functions of the operands by operator.
QUANTISED: Mapping[Any, Callable[..., Any]] = {
    _ops.choose_qparams.tensor: _choose,
    _ops.dequantize_per_channel.default: _of_channels(_dequantise),
    _ops.dequantize_per_tensor.default: _dequantise,
    _ops.dequantize_per_tensor.tensor: _dequantise,
    _ops.quantize_per_channel.default: _of_channels(_quantise),
    _ops.quantize_per_tensor.default: _quantise,
    _ops.quantize_per_tensor.tensor: _quantise,
}

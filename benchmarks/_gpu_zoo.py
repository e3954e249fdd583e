"""Evaluation of the zoo's networks with torch, operator by operator, to check outputs."""

from collections.abc import Callable
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

Operator = Callable[..., Any]


def evaluate(model: onnx.ModelProto, x: Any) -> Any:
    """Return the only output of a model for its only input, on the device of the input.

    Raises:
        KeyError: If it has an operator that the zoo does not use.
    """
    values = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()).to(x.device)
        for tensor in model.graph.initializer
    }
    values[model.graph.input[0].name] = x
    for node in model.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        arguments = [values[name] for name in node.input]
        values[node.output[0]] = _OPERATORS[node.op_type](*arguments, **attributes)
    return values[model.graph.output[0].name]


def _conv(x: Any, weights: Any, bias: Any = None, **attributes: Any) -> Any:
    pads = _begins(attributes["pads"])
    strides, group = tuple(attributes["strides"]), attributes["group"]
    return functional.conv2d(x, weights, bias, strides, pads, groups=group)


def _batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, *, epsilon: float) -> Any:
    return functional.batch_norm(x, mean, variance, scale, bias, eps=epsilon)


def _max_pool(x: Any, *, kernel_shape: list[int], strides: list[int], pads: list[int]) -> Any:
    return functional.max_pool2d(x, tuple(kernel_shape), tuple(strides), _begins(pads))


def _average_pool(x: Any, *, kernel_shape: list[int], **attributes: Any) -> Any:
    strides, pads = tuple(attributes["strides"]), _begins(attributes["pads"])
    counts = bool(attributes["count_include_pad"])
    return functional.avg_pool2d(x, tuple(kernel_shape), strides, pads, count_include_pad=counts)


def _begins(pads: list[int]) -> tuple[int, ...]:
    """Return the padding of each axis; the zoo pads both ends equally."""
    return tuple(pads[: len(pads) // 2])


_OPERATORS: dict[str, Operator] = {
    "Add": torch.add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Concat": lambda *values, axis: torch.cat(values, axis),
    "Conv": _conv,
    "Dropout": lambda x: x,
    "Flatten": lambda x, axis: x.flatten(axis),
    "Gemm": lambda x, weights, bias, **_: functional.linear(x, weights, bias),
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
    "MaxPool": _max_pool,
    "Relu": torch.relu,
    "Softmax": torch.softmax,
    "Transpose": lambda x, perm: x.permute(perm),
}

"""Replacement of operators that ONNX Runtime's optimiser writes by those of the standard."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tuner.networks.graph import nodes_within
from tuner.networks.node_builder import Replacement, UnknownValueError

DOMAIN = "com.microsoft"


def _scalar(b: Replacement, value: str, number: float) -> str:
    """Return the name of a constant of the type of a value."""
    return b.constant(np.array(number, b.dtype(value)))


def _skip_norm(b: Replacement, *, is_centred: bool, bias: int) -> None:
    """Replace a sum and the norm of its last axis; ``bias`` is the position of its last operand."""
    others = b.node.output[1:]
    if any(others[:2]):
        raise UnknownValueError
    # The type of the input is unknown behind another such operator.
    dtype = b.dtype(b.input(0), b.input(2))
    total = b.add("Add", b.as_float(b.input(0), dtype), b.as_float(b.input(1), dtype))
    if b.input(bias):
        total = b.add("Add", total, b.as_float(b.input(bias), dtype))
    if any(others[2:]):
        b.from_float(total, dtype, others[2])
    shift = b.input(3) if is_centred else ""
    _norm(b, total, b.input(2), dtype, 1e-12, is_centred=is_centred, shift=shift)


def _norm(  # noqa: PLR0913  the operands of a norm
    b: Replacement,
    value: str,
    scale: str,
    dtype: np.dtype[Any],
    epsilon: float,
    *,
    is_centred: bool = False,
    shift: str = "",
) -> None:
    """Append the norm of a value of at least 32 bits; ``dtype`` is the type of the output."""
    if is_centred:
        value = b.add("Sub", value, b.reduce("ReduceMean", value, -1))
    variance = b.reduce("ReduceMean", b.add("Mul", value, value), -1)
    wide = np.promote_types(dtype, np.float32)
    least = b.constant(np.array(b.attribute("epsilon", epsilon), wide))
    deviation = b.add("Sqrt", b.add("Add", variance, least))
    scaled = b.add("Mul", b.add("Div", value, deviation), b.as_float(scale, dtype))
    if shift:
        scaled = b.add("Add", scaled, b.as_float(shift, dtype))
    b.from_float(scaled, dtype, b.node.output[0])


def _skip_layer_norm(b: Replacement) -> None:
    _skip_norm(b, is_centred=True, bias=4)


def _skip_simplified_layer_norm(b: Replacement) -> None:
    _skip_norm(b, is_centred=False, bias=3)


def _simplified_layer_norm(b: Replacement) -> None:
    if b.attribute("axis", -1) != -1 or any(b.node.output[1:]):
        raise UnknownValueError
    dtype = b.dtype(b.input(0), b.input(1))
    _norm(b, b.as_float(b.input(0), dtype), b.input(1), dtype, 1e-5)


def _quick_gelu(b: Replacement) -> None:
    data = b.input(0)
    scaled = b.add("Mul", data, _scalar(b, data, b.attribute("alpha", 1.702)))
    b.add("Mul", data, b.add("Sigmoid", scaled), output=b.node.output[0])


def _fused_matmul(b: Replacement) -> None:
    """Replace a product of transposed matrices, with a factor."""
    if b.attribute("transBatchA", 0) or b.attribute("transBatchB", 0):
        raise UnknownValueError
    operands = []
    for index, flag in enumerate(("transA", "transB")):
        value = b.input(index)
        if b.attribute(flag, 0):
            rank = len(b.shape(value))
            perm = [*range(rank - 2), rank - 1, rank - 2]
            value = b.add("Transpose", value, perm=perm) if rank > 1 else value
        operands.append(value)
    alpha = b.attribute("alpha", 1.0)
    output = b.node.output[0]
    if alpha == 1.0:
        b.add("MatMul", *operands, output=output)
        return
    product = b.add("MatMul", *operands)
    b.add("Mul", product, _scalar(b, b.input(0), alpha), output=output)


def _with_activation(op: str, n_inputs: int) -> Callable[[Replacement], None]:
    """Return the replacement of an operator that an activation is fused into."""

    def replace(b: Replacement) -> None:
        attributes = {item.name: helper.get_attribute_value(item) for item in b.node.attribute}
        fused = {key: attributes.pop(key) for key in [*attributes] if key.startswith("activation")}
        name = fused.pop("activation", b"").decode()
        if name not in _ACTIVATIONS or any(b.node.input[n_inputs:]):
            raise UnknownValueError
        # A convolution has a list of them, a product an attribute for each.
        keys = _ACTIVATIONS[name]
        parameters = dict(zip(keys, fused.pop("activation_params", []), strict=False))
        parameters |= {
            key: fused.pop(f"activation_{key}") for key in keys if f"activation_{key}" in fused
        }
        if fused:
            raise UnknownValueError
        value = b.add(op, *b.node.input[:n_inputs], **attributes)
        b.add(name, value, output=b.node.output[0], **parameters)

    return replace


# Names of the parameters of the activations.
_ACTIVATIONS = {
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}

CONTRIBUTED: dict[str, Callable[[Replacement], None]] = {
    "FusedConv": _with_activation("Conv", 3),
    "FusedGemm": _with_activation("Gemm", 3),
    "FusedMatMul": _fused_matmul,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_norm,
}


def correct_domains(model: onnx.ModelProto) -> None:
    """Name the domain of operators that ONNX Runtime's optimiser writes without it, in place."""
    nodes = [
        node
        for node in nodes_within(model.graph)
        if node.op_type in CONTRIBUTED and node.domain in ("", "ai.onnx")
    ]
    for node in nodes:
        node.domain = DOMAIN
    if nodes and all(each.domain != DOMAIN for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))

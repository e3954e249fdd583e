"""Replacement of ONNX Runtime's fused operators by standard ones.

ONNX Runtime runs them on GPUs alone.
"""

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tuner.networks.onnx.classical import operators
from tuner.networks.onnx.contrib.fused_attention import (
    replace_attention,
    replace_embed_layer_norm,
    replace_grouped_attention,
    replace_multi_head_attention,
    replace_rotary_embedding,
)
from tuner.networks.onnx.functions import version_of
from tuner.networks.onnx.graph import Array, nodes_within
from tuner.networks.onnx.node_builder import Replacement, UnknownValueError, opset_of, since
from tuner.networks.onnx.operators.dropped_forms import DROPPED

DOMAIN = "com.microsoft"

_TO_CHANNELS_FIRST = [0, 3, 1, 2]
_TO_CHANNELS_LAST = [0, 2, 3, 1]


def _group_norm(b: Replacement) -> None:
    dtype = b.dtype(b.input(0), b.input(1))
    _normalise_groups(b, b.as_float(b.input(0), dtype), dtype)


def _skip_group_norm(b: Replacement) -> None:
    """Replace a sum and its norm; what is added may be one number for each channel."""
    dtype = b.dtype(b.input(0), b.input(3))
    skip, shape = b.input(3), b.shape(b.input(3))
    if len(shape) == 2:
        skip = b.reshape(skip, shape[0], 1, 1, shape[1])
    total = b.add("Add", b.as_float(b.input(0), dtype), b.as_float(skip, dtype))
    if b.input(4):
        total = b.add("Add", total, b.as_float(b.input(4), dtype))
    if any(b.node.output[1:]):
        b.from_float(total, dtype, b.node.output[1])
    _normalise_groups(b, total, dtype)


def _normalise_groups(b: Replacement, value: str, dtype: np.dtype[np.generic]) -> None:
    """Append the norm of groups of channels; ``value`` has at least 32 bits."""
    shape = b.shape(b.input(0))
    is_last, n_groups = bool(b.attribute("channels_last", 1)), int(b.attribute("groups"))
    if len(shape) != 4:
        raise UnknownValueError
    if is_last:
        value = b.add("Transpose", value, perm=_TO_CHANNELS_FIRST)
        shape = tuple(shape[axis] for axis in _TO_CHANNELS_FIRST)
    wide = np.promote_types(dtype, np.float32)
    one, zero = (b.constant(np.full(n_groups, each, wide)) for each in (1, 0))
    groups = b.reshape(value, shape[0], n_groups, -1)
    epsilon = b.attribute("epsilon", 1e-5)
    normed = b.add("InstanceNormalization", groups, one, zero, epsilon=epsilon)
    value = b.reshape(normed, *shape)
    # ONNX Runtime keeps scale and shift as float32, whatever the type of the data is.
    kind = helper.np_dtype_to_tensor_dtype(wide)
    scale, shift = (b.reshape(b.add("Cast", b.input(index), to=kind), -1, 1, 1) for index in (1, 2))
    value = b.add("Add", b.add("Mul", value, scale), shift)
    if b.attribute("activation"):
        value = b.add("Mul", value, b.add("Sigmoid", value))
    if is_last:
        value = b.add("Transpose", value, perm=_TO_CHANNELS_LAST)
    b.from_float(value, dtype, b.node.output[0])


def _bias_add(b: Replacement) -> None:
    total = b.add("Add", b.input(0), b.input(1))
    b.add("Add", total, b.input(2), output=b.node.output[0])


def _bias_split_gelu(b: Replacement) -> None:
    """Replace by one half of the columns times the activation of the other half."""
    dtype, half = b.dtype(b.input(0), b.input(1)), b.shape(b.input(1))[0] // 2
    total = b.add("Add", b.input(0), b.input(1))
    left, right = (
        b.add("Slice", total, *(b.constant(np.array([each])) for each in (start, start + half, -1)))
        for start in (0, half)
    )
    middle, one, root = (b.constant(np.array(each, dtype)) for each in (0.5, 1, sqrt(2)))
    grown = b.add("Add", b.add("Erf", b.add("Div", right, root)), one)
    gelu = b.add("Mul", b.add("Mul", right, middle), grown)
    b.add("Mul", left, gelu, output=b.node.output[0])


def _nhwc_conv(b: Replacement) -> None:
    """Replace by a convolution between transposes; weights are (outputs, *kernel, inputs)."""
    attributes = {item.name: helper.get_attribute_value(item) for item in b.node.attribute}
    operands = [b.add("Transpose", b.input(i), perm=_TO_CHANNELS_FIRST) for i in (0, 1)]
    value = b.add("Conv", *operands, *b.node.input[2:], **attributes)
    b.add("Transpose", value, perm=_TO_CHANNELS_LAST, output=b.node.output[0])


DIFFUSION: dict[str, Callable[[Replacement], None]] = {
    "BiasAdd": _bias_add,
    "BiasSplitGelu": _bias_split_gelu,
    "GroupNorm": _group_norm,
    "NhwcConv": _nhwc_conv,
    "SkipGroupNorm": _skip_group_norm,
}


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


def _embed_layer_norm(b: Replacement) -> None:
    total = replace_embed_layer_norm(b)
    dtype = b.dtype(b.input(5))
    if any(b.node.output[2:]):
        b.add("Identity", total, output=b.node.output[2])
    value = b.as_float(total, dtype)
    _norm(b, value, b.input(5), dtype, 1e-12, is_centred=True, shift=b.input(6))


def _gelu(b: Replacement) -> None:
    """Replace Gelu and BiasGelu."""
    data = b.add("Add", b.input(0), b.input(1)) if b.input(1) else b.input(0)
    dtype = b.dtype(b.input(0), b.input(1))
    half, one, root = (b.constant(np.array(each, dtype)) for each in (0.5, 1, sqrt(2)))
    grown = b.add("Add", b.add("Erf", b.add("Div", data, root)), one)
    b.add("Mul", b.add("Mul", data, half), grown, output=b.node.output[0])


def _fast_gelu(b: Replacement) -> None:
    data = b.add("Add", b.input(0), b.input(1)) if b.input(1) else b.input(0)
    dtype = b.dtype(b.input(0), b.input(1))
    half, one, factor, cubic = (
        b.constant(np.array(each, dtype)) for each in (0.5, 1, sqrt(2 / pi), 0.044715)
    )
    cube = b.add("Mul", b.add("Mul", data, data), data)
    inner = b.add("Mul", b.add("Add", data, b.add("Mul", cube, cubic)), factor)
    grown = b.add("Add", b.add("Tanh", inner), one)
    b.add("Mul", b.add("Mul", data, half), grown, output=b.node.output[0])


def _gather_blocks(b: Replacement) -> None:
    """Replace a Gather of rows whose blocks have a scale each; the table stays quantised."""
    codes, zeros = b.array(0), b.array(3)
    scales = b.shape(b.input(2))
    bits, block = int(b.attribute("bits", 4)), int(b.attribute("block_size", 128))
    if codes is None or b.attribute("gather_axis", 0) or len(scales) != 2:
        raise UnknownValueError
    if b.attribute("quantize_axis", 1) not in (1, -1):
        raise UnknownValueError
    is_packed = codes.dtype == np.uint8 and bits < 8
    if is_packed:
        codes = _unpacked(codes, bits)
        zeros = None if zeros is None else _unpacked(zeros, bits)[:, : scales[1]]
    if zeros is None:
        middle = 1 << (bits - 1) if b.dtype(b.input(0)) == np.uint8 else 0
        zeros = np.full(scales, middle)
    if codes.shape[1] != scales[1] * block:
        raise UnknownValueError
    kind = np.uint8 if codes.min(initial=0) >= 0 else np.int8
    rows, shifts, factors = (
        b.add("Gather", each, b.input(1), axis=0)
        for each in (b.constant(codes.astype(kind)), b.constant(zeros.astype(kind)), b.input(2))
    )
    number = helper.np_dtype_to_tensor_dtype(b.dtype(b.input(2)))
    shape = b.shape(b.input(1))
    blocks = b.reshape(b.add("Cast", rows, to=number), *shape, scales[1], block)
    shift = b.unsqueeze(b.add("Cast", shifts, to=number), -1)
    factor = b.unsqueeze(factors, -1)
    scaled = b.add("Mul", b.add("Sub", blocks, shift), factor)
    b.reshape(scaled, *shape, codes.shape[1], output=b.node.output[0])


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the numbers in the bytes of each row, the low bits first."""
    shifts = np.arange(0, 8, bits)
    parts = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


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


def _with_activation(op: str) -> Callable[[Replacement], None]:
    """Return the replacement of an operator of three operands that an activation is fused into.

    A fourth one, as convolutions may have, is added before the activation.
    """

    def replace(b: Replacement) -> None:
        attributes = {item.name: helper.get_attribute_value(item) for item in b.node.attribute}
        fused = {key: attributes.pop(key) for key in [*attributes] if key.startswith("activation")}
        name = fused.pop("activation", b"").decode()
        if name not in _ACTIVATIONS:
            raise UnknownValueError
        # A convolution has a list of them, a product an attribute for each.
        keys = _ACTIVATIONS[name]
        parameters = dict(zip(keys, fused.pop("activation_params", []), strict=False))
        parameters |= {
            key: fused.pop(f"activation_{key}") for key in keys if f"activation_{key}" in fused
        }
        if fused:
            raise UnknownValueError
        value = b.add(op, *b.node.input[:3], **attributes)
        if b.input(3):
            value = b.add("Add", value, b.input(3))
        if name != "Clip" or b.opset < 11:
            b.add(name or "Identity", value, output=b.node.output[0], **parameters)
            return
        dtype = b.dtype(b.input(0), b.input(1))
        bounds = (b.constant(np.array(parameters[key], dtype)) for key in ("min", "max"))
        b.add("Clip", value, *bounds, output=b.node.output[0])

    return replace


# Names of the parameters of the activations.
_ACTIVATIONS = {
    "": (),
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}

CONTRIBUTED: dict[str, Callable[[Replacement], None]] = {
    "Attention": since(10, replace_attention),
    "BiasGelu": _gelu,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _with_activation("Conv"),
    "FusedGemm": _with_activation("Gemm"),
    "FusedMatMul": _fused_matmul,
    "GatherBlockQuantized": since(11, _gather_blocks),
    "Gelu": _gelu,
    "GroupQueryAttention": since(11, replace_grouped_attention),
    "MultiHeadAttention": since(10, replace_multi_head_attention),
    "QuickGelu": _quick_gelu,
    "RotaryEmbedding": since(11, replace_rotary_embedding),
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_norm,
    "TransposeMatMul": _fused_matmul,
    **DIFFUSION,
    **DROPPED,
}
# Operators that the standard has since the version.
_STANDARDISED = {
    "DequantizeLinear": 13,
    "Pad": 11,
    "QuantizeLinear": 13,
    "Range": 11,
    "Trilu": 14,
}
#: Domains whose operators are replaced, with the version that files may leave out.
_DOMAINS = {DOMAIN: 1, "com.microsoft.nchwc": 1, operators.DOMAIN: 3}


def correct_domains(model: onnx.ModelProto) -> None:
    """Correct the domains of operators as ONNX Runtime reads them, in place.

    Its optimiser writes operators of its own without their domain, and files without the version
    of a domain; some operators of its own have become those of the standard.
    """
    opset = opset_of(model)
    for node in nodes_within(model.graph):
        if not node.domain and node.op_type in CONTRIBUTED and not version_of(node, opset):
            node.domain = DOMAIN
        if node.domain == DOMAIN and opset >= _STANDARDISED.get(node.op_type, opset + 1):
            node.domain = ""
    used = {node.domain for node in nodes_within(model.graph)}
    named = {each.domain for each in model.opset_import}
    for domain in (used & set(_DOMAINS)) - named:
        model.opset_import.append(helper.make_opsetid(domain, _DOMAINS[domain]))

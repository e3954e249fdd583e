"""Replacement of quantised operators by operators that every importer has.

Sums of products of 8-bit numbers are whole numbers, which float32 holds exactly up to 2 ** 24, so
that float kernels compute them; the scaling and rounding afterwards is that of the specification.
Longer sums are computed in float64 where they are needed as whole numbers.
"""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from tuner.networks.onnx.contrib import blocked_weights
from tuner.networks.onnx.contrib.quantised_builder import QuantisedBuilder
from tuner.networks.onnx.graph import Array, attribute, constant_readers, nodes_within

# Products of two bytes whose sum float32 holds exactly.
_MAX_TERMS = 2**24 // 255**2


def _convolve(b: QuantisedBuilder, data: str, zero: str, weight: str, weight_zero: str) -> str:
    attributes = {
        item.name: helper.get_attribute_value(item)
        for item in b.node.attribute
        if item.name in ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    }
    kernel = b.centred(weight, "")
    if weight_zero:
        # One zero point for all channels, or one for each.
        outputs = b.constant(np.array([-1] + [1] * (b.rank_of(weight) - 1)))
        number = b.add("Cast", weight_zero, to=b.sum_type)
        kernel = b.add("Sub", kernel, b.add("Reshape", number, outputs))
    return b.add("Conv", b.centred(data, zero), kernel, **attributes)


def _choose_sum_type(b: QuantisedBuilder, n_terms: Callable[[Array], int]) -> None:
    """Sum whole numbers in float64 unless float32 holds every sum, as the weight tells."""
    weight = b.array(1)
    if not b.is_float and (weight is None or n_terms(weight) > _MAX_TERMS):
        b.sum_type = int(TensorProto.DOUBLE)


def _conv_integer(b: QuantisedBuilder) -> None:
    _choose_sum_type(b, lambda weight: weight[0].size)
    b.whole(_convolve(b, b.input(0), b.input(2), b.input(1), b.input(3)))


def _qlinear_conv(b: QuantisedBuilder) -> None:
    data, scale, zero, weight, weight_scale, weight_zero, out_scale, out_zero = b.node.input[:8]
    value = _convolve(b, data, zero, weight, weight_zero)
    channels = b.constant(np.array([1, -1] + [1] * (b.rank_of(weight) - 2)))
    if b.input(8):
        bias = b.add("Cast", b.input(8), to=TensorProto.FLOAT)
        value = b.add("Add", value, b.add("Reshape", bias, channels))
    factor = b.add("Div", b.add("Mul", scale, weight_scale), out_scale)
    value = b.add("Mul", value, b.add("Reshape", factor, channels))
    b.saturated(value, out_zero, b.kind_of(data, out_zero), b.node.output[0])


def _multiply(b: QuantisedBuilder, left: str, left_zero: str, right: str, right_zero: str) -> str:
    """Return the product of two quantised matrices, without their scales."""
    centred = b.centred(left, "")
    if left_zero:
        zero = b.add("Cast", left_zero, to=b.sum_type)
        centred = b.add("Sub", centred, _along_rows(b, zero, left_zero))
    return b.add("MatMul", centred, b.centred(right, right_zero))


def _along_rows(b: QuantisedBuilder, value: str, original: str) -> str:
    """Return a number per row, such as a scale, so that it broadcasts to the rows of a matrix."""
    if b.rank_of(original) != 1 or b.length_of(original) == 1:
        return value
    return b.add("Reshape", value, b.constant(np.array([-1, 1])))


def _matmul_integer(b: QuantisedBuilder) -> None:
    _choose_sum_type(b, lambda weight: weight.shape[-2 if weight.ndim > 1 else 0])
    b.whole(_multiply(b, b.input(0), b.input(2), b.input(1), b.input(3)))


def _qlinear_matmul(b: QuantisedBuilder) -> None:
    left, left_scale, left_zero, right, right_scale, right_zero, scale, zero = b.node.input[:8]
    value = _multiply(b, left, left_zero, right, right_zero)
    rows = _along_rows(b, left_scale, left_scale)
    factor = b.add("Div", b.add("Mul", rows, right_scale), scale)
    factor = b.add("Cast", factor, to=TensorProto.FLOAT)
    b.saturated(b.add("Mul", value, factor), zero, b.kind_of(left, zero), b.node.output[0])


def _qgemm(b: QuantisedBuilder) -> None:
    """Replace a Gemm; without an output scale, its result is float32."""
    left, left_scale, left_zero, right, right_scale, right_zero, bias = b.node.input[:7]
    attributes = {item.name: helper.get_attribute_value(item) for item in b.node.attribute}
    # A zero point per column is a row, and behind a transpose a column.
    columns = [-1, 1] if attributes.get("transB", 0) else [1, -1]
    number = b.add("Cast", right_zero, to=TensorProto.FLOAT)
    number = b.add("Reshape", number, b.constant(np.array(columns)))
    weight = b.add("Sub", b.add("Cast", right, to=TensorProto.FLOAT), number)
    transposes = {key: attributes.get(key, 0) for key in ("transA", "transB")}
    value = b.add("Gemm", b.centred(left, left_zero), weight, **transposes)
    if bias:
        value = b.add("Add", value, b.add("Cast", bias, to=TensorProto.FLOAT))
    factor = b.add("Mul", left_scale, right_scale)
    if attributes.get("alpha", 1.0) != 1.0:
        factor = b.add("Mul", factor, b.constant(np.array(attributes["alpha"], np.float32)))
    if not b.input(7):
        b.add("Mul", value, factor, output=b.node.output[0])
        return
    value = b.add("Mul", value, b.add("Div", factor, b.input(7)))
    b.saturated(value, b.input(8), b.kind_of(left, b.input(8)), b.node.output[0])


def _matmul_integer_to_float(b: QuantisedBuilder) -> None:
    left, right, left_scale, right_scale = b.node.input[:4]
    value = _multiply(b, left, b.input(4), right, b.input(5))
    _scaled(b, value, b.add("Mul", left_scale, right_scale), b.input(6))


def _dynamic_quantize_matmul(b: QuantisedBuilder) -> None:
    names = [f"{b.node.output[0]}_{part}" for part in ("left", "scale", "zero")]
    b.nodes.append(helper.make_node("DynamicQuantizeLinear", [b.input(0)], names))
    value = _multiply(b, names[0], names[2], b.input(1), b.input(3))
    _scaled(b, value, b.add("Mul", names[1], b.input(2)), b.input(4))


def _scaled(b: QuantisedBuilder, value: str, factor: str, bias: str) -> None:
    output = b.node.output[0]
    value = b.add("Mul", value, factor, output="" if bias else output)
    if bias:
        b.add("Add", value, bias, output=output)


def _dynamic_quantize_lstm(b: QuantisedBuilder) -> None:
    """Replace the layer by an LSTM with dequantised weights.

    The original also quantises its data and state in every step, with an error that this lacks.
    """
    names = list(b.node.input) + [""] * (12 - len(b.node.input))
    weights = [
        _dequantised(b, names[index], names[scale], names[zero])
        for index, scale, zero in ((1, 8, 9), (2, 10, 11))
    ]
    attributes = {item.name: helper.get_attribute_value(item) for item in b.node.attribute}
    inputs = [names[0], *weights, *names[3:8]]
    b.nodes.append(helper.make_node("LSTM", inputs, list(b.node.output), **attributes))


def _dequantised(b: QuantisedBuilder, weight: str, scale: str, zero: str) -> str:
    """Return a weight (directions, inputs, outputs) as float32 (directions, outputs, inputs)."""
    value = b.add("Cast", weight, to=TensorProto.FLOAT)
    shape = b.constant(np.array([b.length_of(weight), 1, -1]))
    if zero:
        number = b.add("Cast", zero, to=TensorProto.FLOAT)
        value = b.add("Sub", value, b.add("Reshape", number, shape))
    value = b.add("Mul", value, b.add("Reshape", scale, shape))
    return b.add("Transpose", value, perm=[0, 2, 1])


def _through_float(op: str, n_data: int) -> Callable[[QuantisedBuilder], None]:
    """Return the replacement of an operator of ONNX Runtime that quantises after ``op``."""

    def replace(b: QuantisedBuilder) -> None:
        data = [
            b.add("DequantizeLinear", *b.node.input[3 * index : 3 * index + 3])
            for index in range(n_data)
        ]
        attributes = {item.name: helper.get_attribute_value(item) for item in b.node.attribute}
        for name in ("channels_last", "opset"):
            attributes.pop(name, None)
        value = b.add(op, *data, **attributes)
        scale = b.node.input[3 * n_data : 3 * n_data + 2]
        b.add("QuantizeLinear", value, *scale, output=b.node.output[0])

    return replace


def _qlinear_concat(b: QuantisedBuilder) -> None:
    """Replace a concatenation; scale and zero point of the result come first."""
    parts = [
        b.add("DequantizeLinear", *b.node.input[index : index + 3])
        for index in range(2, len(b.node.input), 3)
    ]
    value = b.add("Concat", *parts, axis=b.attribute("axis"))
    b.add("QuantizeLinear", value, *b.node.input[:2], output=b.node.output[0])


def _qlinear_where(b: QuantisedBuilder) -> None:
    data = [b.add("DequantizeLinear", *b.node.input[index : index + 3]) for index in (1, 4)]
    value = b.add("Where", b.input(0), *data)
    b.add("QuantizeLinear", value, *b.node.input[7:9], output=b.node.output[0])


def _qembed_layer_norm(b: QuantisedBuilder) -> None:
    """Replace the operator by the one of float tables, which is replaced later."""
    _use_own_names(b)
    names = list(b.node.input)
    tables = [
        b.add("DequantizeLinear", names[index], names[index + 6], names[index + 11])
        if names[index]
        else ""
        for index in range(2, 7)
    ]
    attributes = {item.name: helper.get_attribute_value(item) for item in b.node.attribute}
    node = helper.make_node(
        "EmbedLayerNormalization",
        [*names[:2], *tables, names[7]],
        list(b.node.output),
        domain="com.microsoft",
        **attributes,
    )
    b.nodes.append(node)


def _use_own_names(b: QuantisedBuilder) -> None:
    """Name values otherwise than what later replaces a node with the same output."""
    b.prefix = f"{b.node.output[0]}_quantised"


def _qattention(b: QuantisedBuilder) -> None:
    """Replace the projections; the attention among them is an operator that is replaced later."""
    weight = b.array(1)
    if weight is None or attribute(b.node, "do_rotary", 0):
        return
    _use_own_names(b)
    n_heads, width = attribute(b.node, "num_heads"), weight.shape[1] // 3
    value = _multiply(b, b.input(0), b.input(6), b.input(1), b.input(7))
    value = b.add("Mul", value, b.add("Mul", b.input(3), b.input(4)))
    value = b.add("Add", value, b.input(2))
    parts = []
    for index in range(3):
        ends = (b.constant(np.array([n * width])) for n in (index, index + 1))
        parts.append(b.add("Slice", value, *ends, b.constant(np.array([2]))))
    past = ["", ""]
    if b.input(8):
        past = [b.add("Gather", b.input(8), b.constant(np.array(i)), axis=0) for i in (0, 1)]
    output, present = [*b.node.output, ""][:2]
    # The operator takes a past only with what it becomes.
    presents = [f"{output}_{part}" for part in ("keys", "values")] if present or past[0] else []
    attributes = {
        name: attribute(b.node, name)
        for name in ("mask_filter_value", "num_heads", "scale", "unidirectional")
        if attribute(b.node, name) is not None
    }
    node = helper.make_node(
        "MultiHeadAttention",
        [*parts, "", b.input(5), "", *past],
        [output, *presents],
        domain="com.microsoft",
        **attributes,
    )
    b.nodes.append(node)
    if present:
        shape = np.array([2, b.length_of(b.input(0)), n_heads, -1, width // n_heads])
        both = b.add("Concat", *presents, axis=0)
        b.add("Reshape", both, b.constant(shape), output=present)


_REPLACEMENTS: dict[tuple[str, str], Callable[[QuantisedBuilder], None]] = {
    ("", "ConvInteger"): _conv_integer,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("com.microsoft", "DynamicQuantizeLSTM"): _dynamic_quantize_lstm,
    ("com.microsoft", "DynamicQuantizeMatMul"): _dynamic_quantize_matmul,
    ("com.microsoft", "MatMulIntegerToFloat"): _matmul_integer_to_float,
    ("com.microsoft", "MatMulNBits"): blocked_weights.replace_product,
    ("com.microsoft", "QAttention"): _qattention,
    ("com.microsoft", "QEmbedLayerNormalization"): _qembed_layer_norm,
    ("com.microsoft", "QGemm"): _qgemm,
    ("com.microsoft", "QLinearAdd"): _through_float("Add", 2),
    ("com.microsoft", "QLinearAveragePool"): _through_float("AveragePool", 1),
    ("com.microsoft", "QLinearConcat"): _qlinear_concat,
    ("com.microsoft", "QLinearGlobalAveragePool"): _through_float("GlobalAveragePool", 1),
    ("com.microsoft", "QLinearLeakyRelu"): _through_float("LeakyRelu", 1),
    ("com.microsoft", "QLinearMul"): _through_float("Mul", 2),
    ("com.microsoft", "QLinearSigmoid"): _through_float("Sigmoid", 1),
    ("com.microsoft", "QLinearSoftmax"): _through_float("Softmax", 1),
    ("com.microsoft", "QLinearWhere"): _qlinear_where,
}


def replace_quantised(model: onnx.ModelProto) -> int:
    """Replace quantised operators of the main graph in place.

    Args:
        model: Model with fixed input shapes.

    Returns:
        Number of replaced nodes.
    """
    kinds = {tensor.name: int(tensor.data_type) for tensor in model.graph.initializer}
    replacements = [_replacement_of(node, kinds) for node in model.graph.node]
    if not any(replacements):
        return 0
    types, arrays = _types_of(model), constant_readers(model.graph)
    as_float = _read_as_float(model.graph)
    # Types of values that are float32 now.
    kept = [info for info in model.graph.value_info if info.name not in as_float]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    nodes: list[onnx.NodeProto] = []
    n_replaced = 0
    for node, replace in zip(list(model.graph.node), replacements, strict=True):
        is_float = any(name in as_float for name in node.output)
        builder = QuantisedBuilder(node, types, model.graph, arrays, is_float=is_float)
        if replace is not None:
            replace(builder)
            n_replaced += bool(builder.nodes)
        nodes += builder.nodes or [node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return n_replaced


def _replacement_of(
    node: onnx.NodeProto, kinds: Mapping[str, int]
) -> Callable[[QuantisedBuilder], None] | None:
    if blocked_weights.is_blocked(node, kinds):
        return blocked_weights.replace_dequantisation
    if attribute(node, "channels_last", 0):
        return None
    return _REPLACEMENTS.get((node.domain.replace("ai.onnx", ""), node.op_type))


def _read_as_float(graph: onnx.GraphProto) -> set[str]:
    """Return the sums of products that nothing but conversions to float32 reads."""
    sums: set[str] = set()
    casts: set[str] = set()
    others = {info.name for info in graph.output}
    for node in nodes_within(graph):
        if node.op_type in ("ConvInteger", "MatMulInteger"):
            sums.update(node.output)
        is_cast = node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.FLOAT
        (casts if is_cast else others).update(node.input)
    return sums & casts - others


def _types_of(model: onnx.ModelProto) -> dict[str, tuple[int, int, int]]:
    """Return the element type, the rank and the first dimension of values, as far as inferred."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {
        info.name: (
            info.type.tensor_type.elem_type,
            len(info.type.tensor_type.shape.dim),
            info.type.tensor_type.shape.dim[0].dim_value if info.type.tensor_type.shape.dim else 0,
        )
        for info in (*inferred.value_info, *inferred.input, *inferred.output)
    }
    for tensor in model.graph.initializer:
        types[tensor.name] = (tensor.data_type, len(tensor.dims), (*tensor.dims, 0)[0])
    for name, read in constant_readers(model.graph).items():
        if name not in types:
            array = read()
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            types[name] = (kind, array.ndim, (*array.shape, 0)[0])
    return types

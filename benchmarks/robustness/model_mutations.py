"""Mutations of ONNX models, as damaged and hostile files have them; every one is seeded."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper

from benchmarks.robustness import hostile_graphs
from benchmarks.robustness.hostile_graphs import NAMES, SIZES

_OPERATORS = (
    *("Add", "Conv", "ConvTranspose", "MatMul", "Gemm", "Reshape", "Transpose", "Slice", "Gather"),
    *("Concat", "Split", "Pad", "Resize", "Softmax", "LSTM", "GRU", "BatchNormalization", "Einsum"),
    *("ConstantOfShape", "Expand", "Tile", "Range", "NonZero", "TopK", "CumSum", "MaxPool", "Cast"),
    *("QLinearConv", "MatMulInteger", "DequantizeLinear", "Attention", "Where", "Squeeze", "Shape"),
    *("If", "Loop", "Scan", "SequenceAt", "OneHot", "GridSample", "ScatterND", "Identity", "Sum"),
    *("Dropout", "RandomNormal", "StringSplit", "Optional", "Nonsense", ""),
)
_ATTRIBUTES = (
    *("axis", "axes", "perm", "pads", "strides", "dilations", "kernel_shape", "group", "to"),
    *("epsilon", "equation", "value", "hidden_size", "mode", "transB", "keepdims", "blocksize"),
)

Draw = random.Random
Mutation = Callable[[Draw, onnx.ModelProto], None]


def mutate(draw: Draw, content: bytes) -> bytes:
    """Return a mutant of a serialised model: of its fields, of its bytes, or of both."""
    if draw.random() < 0.8:
        model = onnx.ModelProto.FromString(content)
        for change in draw.sample(MUTATIONS, draw.choice((1, 1, 1, 2, 3))):
            # A model that is nested as deeply as protobuf allows cannot be nested more.
            with suppress(DecodeError):
                change(draw, model)
        content = model.SerializeToString()
    else:
        content = draw.choice(_BYTES)(draw, content)
    return draw.choice(_BYTES)(draw, content) if draw.random() < 0.1 else content


def _size(draw: Draw) -> int:
    return draw.choice(SIZES) if draw.random() < 0.8 else draw.randrange(300)


def _values(model: onnx.ModelProto) -> list[Any]:
    graph = model.graph
    return [*graph.input, *graph.output, *graph.value_info]


def _names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    produced = [name for node in graph.node for name in node.output]
    return [*(info.name for info in graph.input), *(t.name for t in graph.initializer), *produced]


def _dims(draw: Draw, model: onnx.ModelProto) -> None:
    infos = _values(model)
    if not infos:
        return
    shape = draw.choice(infos).type.tensor_type.shape
    change = draw.randrange(4)
    if change == 0 and shape.dim:
        del shape.dim[draw.randrange(len(shape.dim))]
    elif change == 1 or not shape.dim:
        for _ in range(draw.choice((1, 3, 40))):
            shape.dim.add().dim_value = _size(draw)
    elif change == 2:
        draw.choice(shape.dim).dim_param = draw.choice(("n", "batch", *NAMES))
    else:
        draw.choice(shape.dim).dim_value = _size(draw)


def _unshaped(draw: Draw, model: onnx.ModelProto) -> None:
    infos = _values(model)
    if infos:
        draw.choice(infos).type.tensor_type.ClearField("shape")


def _dtype(draw: Draw, model: onnx.ModelProto) -> None:
    kinds = [*range(25), 99, -1, 2**31 - 1]
    places = [*_values(model), *model.graph.initializer]
    if not places:
        return
    place = draw.choice(places)
    if isinstance(place, TensorProto):
        place.data_type = draw.choice(kinds)
    else:
        place.type.tensor_type.elem_type = draw.choice(kinds)


def _kind(draw: Draw, model: onnx.ModelProto) -> None:
    """Make a value a sequence, an optional value, a map or nothing, perhaps nested."""
    infos = _values(model)
    if not infos:
        return
    kind = onnx.TypeProto()
    kind.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    for _ in range(draw.choice((1, 2, 40))):
        make = draw.choice((helper.make_sequence_type_proto, helper.make_optional_type_proto))
        kind = make(kind)
    draw.choice(infos).type.CopyFrom(draw.choice((kind, onnx.TypeProto())))


def _weight(draw: Draw, model: onnx.ModelProto) -> None:
    """Make the data of an initialiser contradict its shape or its place."""
    if not model.graph.initializer:
        return
    tensor = draw.choice(model.graph.initializer)
    change = draw.randrange(5)
    if change == 0:
        tensor.dims.append(_size(draw))
    elif change == 1 and tensor.dims:
        tensor.dims[draw.randrange(len(tensor.dims))] = _size(draw)
    elif change == 2:
        tensor.raw_data = draw.randbytes(draw.choice((0, 1, 3, 4096)))
    elif change == 3:
        tensor.data_location = TensorProto.EXTERNAL
        place = draw.choice(("/etc/passwd", "../secret", "weights.bin", ""))
        tensor.external_data.add(key="location", value=place)
        tensor.external_data.add(key="length", value=draw.choice(("-1", "many", str(2**62))))
    else:
        tensor.float_data.extend([draw.choice((0.0, float("nan"), 1e38))] * 5)


def _numbers(draw: Draw, model: onnx.ModelProto) -> None:
    """Replace a constant, for example a shape or bounds, by hostile whole numbers."""
    tensors = [t for t in model.graph.initializer if t.data_type == TensorProto.INT64]
    names = [t.name for t in tensors]
    if names:
        tensor = draw.choice(tensors)
        dims = list(tensor.dims)
        n_values = min(max(dims[0] if dims else 1, 0), 64)
        values = [_size(draw) for _ in range(n_values)]
        tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.INT64, [n_values], values))
        return
    nodes = [node for node in model.graph.node if len(node.input) > 1]
    if nodes:
        values = [_size(draw) for _ in range(draw.choice((1, 2, 4)))]
        constant = helper.make_tensor("hostile", TensorProto.INT64, [len(values)], values)
        model.graph.initializer.append(constant)
        node = draw.choice(nodes)
        node.input[draw.randrange(1, len(node.input))] = "hostile"


def _opset(draw: Draw, model: onnx.ModelProto) -> None:
    change = draw.randrange(4)
    if change == 0:
        del model.opset_import[:]
    elif change == 1:
        version, domain = draw.choice((0, 1, 7, 23, 99)), draw.choice(("", "com.acme", *NAMES))
        model.opset_import.add(domain=domain, version=version)
    elif change == 2:
        model.ir_version = draw.choice((0, 1, 3, 99, 2**62, -1))
    elif model.opset_import:
        model.opset_import[0].version = draw.choice((-1, 0, 1, 5, 6, 8, 10, 12, 99, 2**31, 2**62))


def _attribute(draw: Draw, model: onnx.ModelProto) -> None:
    if not model.graph.node:
        return
    node = draw.choice(model.graph.node)
    if not node.attribute or draw.random() < 0.3:
        node.attribute.add(
            name=draw.choice(_ATTRIBUTES),
            type=draw.choice((onnx.AttributeProto.INT, onnx.AttributeProto.INTS)),
            i=_size(draw),
            ints=[_size(draw) for _ in range(draw.choice((0, 2, 4)))],
        )
        return
    item = draw.choice(node.attribute)
    change = draw.randrange(5)
    if change == 0:
        node.attribute.remove(item)
    elif change == 1:
        node.attribute.add().CopyFrom(item)
    elif change == 2:
        item.type = draw.choice(onnx.AttributeProto.AttributeType.values())
    elif change == 3:
        item.s = draw.choice(NAMES).encode()
        item.f = draw.choice((0.0, -1.0, float("nan"), float("inf"), 1e38))
    item.i = _size(draw)
    for index in range(len(item.ints)):
        item.ints[index] = _size(draw)


def _operator(draw: Draw, model: onnx.ModelProto) -> None:
    if model.graph.node:
        node = draw.choice(model.graph.node)
        node.op_type = draw.choice(_OPERATORS)
        if draw.random() < 0.2:
            node.domain = draw.choice(("ai.onnx", "com.microsoft", "ai.onnx.ml", *NAMES))


def _edges(draw: Draw, model: onnx.ModelProto) -> None:
    """Rewire a node: cycles, missing values, too many or too few operands, two producers."""
    graph = model.graph
    if not graph.node:
        return
    node, names = draw.choice(graph.node), _names(model)
    change = draw.randrange(7)
    if change == 0 and node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice((*names, "nowhere", ""))
    elif change == 1 and node.input and node.output:
        node.input[0] = node.output[0]
    elif change == 2:
        node.input.extend(draw.choices((*names, ""), k=draw.choice((1, 40))))
    elif change == 3:
        del node.input[:]
    elif change == 4:
        node.output.append(draw.choice((*names, "another", "")))
    elif change == 5:
        del node.output[:]
    elif node.output:
        node.output[0] = draw.choice((*names, ""))


def _nodes(draw: Draw, model: onnx.ModelProto) -> None:
    graph = model.graph
    if not graph.node:
        return
    nodes = list(graph.node)
    change = draw.randrange(4)
    if change == 0:
        nodes.append(draw.choice(nodes))
    elif change == 1:
        nodes.remove(draw.choice(nodes))
    elif change == 2:
        draw.shuffle(nodes)
    else:
        nodes.reverse()
    copies = []
    for node in nodes:
        copies.append(onnx.NodeProto())
        copies[-1].CopyFrom(node)
    del graph.node[:]
    graph.node.extend(copies)


def _interface(draw: Draw, model: onnx.ModelProto) -> None:
    """Remove, double or add inputs and outputs of the graph."""
    graph = model.graph
    infos = draw.choice((graph.input, graph.output))
    change = draw.randrange(4)
    if change == 0 and infos:
        del infos[draw.randrange(len(infos))]
    elif change == 1 and infos:
        infos.add().CopyFrom(draw.choice(infos))
    elif change == 2:
        del infos[:]
    else:
        name = draw.choice((*_names(model), "nowhere", ""))
        infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]))


def _rename(draw: Draw, model: onnx.ModelProto) -> None:
    """Give a value another name, wherever it is read."""
    names = _names(model)
    if not names:
        return
    old, new = draw.choice(names), draw.choice(NAMES)
    graph = model.graph
    for item in (*_values(model), *graph.initializer):
        item.name = new if item.name == old else item.name
    for node in graph.node:
        for values in (node.input, node.output):
            for index, name in enumerate(values):
                values[index] = new if name == old else name
    if draw.random() < 0.3:
        graph.name = model.producer_name = new


def _cut(draw: Draw, content: bytes) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _flip(draw: Draw, content: bytes) -> bytes:
    flipped = bytearray(content)
    for _ in range(draw.randrange(1, 12) if content else 0):
        flipped[draw.randrange(len(flipped))] = draw.randrange(256)
    return bytes(flipped)


def _insert(draw: Draw, content: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.randbytes(draw.randrange(1, 100)) + content[at:]


def _repeat(draw: Draw, content: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + content[at : at + 100] * draw.randrange(2, 20) + content[at:]


#: Changes of fields, each in place; one that does not apply to a model leaves it as it is.
MUTATIONS: tuple[Mutation, ...] = (
    *(_dims, _unshaped, _dtype, _kind, _weight, _numbers, _opset, _attribute, _operator, _edges),
    *(_nodes, _interface, _rename, *hostile_graphs.ATTACKS),
)
_BYTES: tuple[Callable[[Draw, bytes], bytes], ...] = (_cut, _flip, _flip, _insert, _repeat)

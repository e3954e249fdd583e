"""Quantised ONNX models whose products ONNX Runtime sums exactly on any CPU.

On x86-64 CPUs without VNNI, ONNX Runtime adds pairs of products of uint8 and int8 in 16 bits, where
they saturate. It adds products of uint8 and uint8 in 32 bits. So weights of int8, and their zero
points, are moved up by 128, which changes no product of what they stand for.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from tuner.peers.graph_nodes import graphs_within, read_graph


class _Weight(NamedTuple):
    """Positions of inputs of a node: a weight, its zero point, its scale, the data's zero point."""

    at: int
    zero: int
    scale: int | None = None
    data_zero: int | None = None


_WEIGHTS: Mapping[str, tuple[_Weight, ...]] = {
    "ConvInteger": (_Weight(1, 3, data_zero=2),),
    "DequantizeLinear": (_Weight(0, 2, 1),),
    "DynamicQuantizeLSTM": (_Weight(1, 9, 8), _Weight(2, 11, 10)),
    "DynamicQuantizeMatMul": (_Weight(1, 3, 2),),
    "MatMulInteger": (_Weight(1, 3, data_zero=2),),
    "MatMulIntegerToFloat": (_Weight(1, 5, 3, data_zero=4),),
    "QAttention": (_Weight(1, 7, 4, data_zero=6),),
    "QGemm": (_Weight(3, 5, 4, data_zero=2),),
    "QLinearConv": (_Weight(3, 5, 4, data_zero=2),),
    "QLinearMatMul": (_Weight(3, 5, 4, data_zero=2),),
}


def write_exact(path: str, out: Path) -> bool:
    """Write a copy of a model whose constant weights of int8 are of uint8.

    Returns:
        False if it has none, and nothing was written.
    """
    model = read_graph(path)
    if not move_weights(model):
        return False
    onnx.save(model, out, save_as_external_data=True, location=f"{out.name}.data")
    return True


def move_weights(model: onnx.ModelProto) -> bool:
    """Move the constant weights of int8 of quantised products to uint8.

    Returns:
        Whether the model has such weights.
    """
    return sum(_move_weights(graph) for graph in graphs_within(model.graph)) > 0


def _move_weights(graph: GraphProto) -> int:
    """Move the weights of a graph; return their number."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    moved: dict[str, TensorProto] = {}
    for node in graph.node:
        for weight in _WEIGHTS.get(node.op_type, ()):
            _move_weight(node, weight, constants, moved)
    graph.initializer.extend(moved.values())
    return len(moved)


def _move_weight(
    node: NodeProto,
    of: _Weight,
    constants: Mapping[str, TensorProto],
    moved: dict[str, TensorProto],
) -> None:
    named = {index: name for index, name in enumerate(node.input) if name}
    weight, zero, scale, data_zero = (
        None if index is None else constants.get(named.get(index, "")) for index in of
    )
    if weight is None or weight.data_type != TensorProto.INT8 or (of.zero in named and not zero):
        return
    if data_zero is not None and data_zero.data_type == TensorProto.INT8:
        return  # it does not saturate products of int8 and int8, and takes no int8 and uint8
    if zero is None:
        shape = () if scale is None else tuple(scale.dims)
        zero = numpy_helper.from_array(np.zeros(shape, np.int8), f"{weight.name}_zero")
    node.input.extend([""] * (of.zero + 1 - len(node.input)))
    node.input[of.at], node.input[of.zero] = _move(weight, moved), _move(zero, moved)


def _move(tensor: TensorProto, moved: dict[str, TensorProto]) -> str:
    """Add a constant that is larger by 128; return its name."""
    name = f"{tensor.name}_moved_by_128"
    if name not in moved:
        codes = numpy_helper.to_array(tensor).astype(np.int16) + 128
        moved[name] = numpy_helper.from_array(codes.astype(np.uint8), name)
    return name


@cache
def saturates() -> bool:
    """Return whether ONNX Runtime saturates sums of products of uint8 and int8 on this CPU."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["data", "weight"], ["sums"])],
        "sums",
        [value("data", TensorProto.UINT8, [1, 4])],
        [value("sums", TensorProto.INT32, [1, 1])],
        [numpy_helper.from_array(np.full((4, 1), 127, np.int8), "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (sums,) = session.run(None, {"data": np.full((1, 4), 255, np.uint8)})
    return int(sums[0, 0]) != 4 * 255 * 127

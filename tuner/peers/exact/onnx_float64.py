"""ONNX models in float64, by onnx's own evaluator, which shares no code with any runtime."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tuner.library.arrays import Array
from tuner.peers.exact.rounding import Rounding, widened
from tuner.peers.graph_nodes import graphs_within, read_graph

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Attributes that name the type of a result.
_TYPES = ("to", "dtype", "output_dtype", "output_datatype")


class GatherElements(OpRun):  # type: ignore[misc]  # untyped package
    """The operator for any number of elements; onnx's own takes 64."""

    op_domain = ""

    def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any]:
        return (np.take_along_axis(data, indices, axis),)


def run(path: str, arrays: Mapping[str, Array], rounding: Rounding | None) -> list[Any]:
    """Return the outputs of a model in float64, in order.

    Args:
        arrays: Inputs by name.
        rounding: Rounds the results of nodes; None for exact ones.
    """
    network = ReferenceEvaluator(in_float64(read_graph(path)), new_ops=[GatherElements])
    if rounding is not None:
        for node in network.rt_nodes_:
            node.run = partial(_run_rounded, node.run, rounding)
    outputs: list[Any] = network.run(
        None, {name: widened(arrays[name]) for name in network.input_names if name in arrays}
    )
    return outputs


def _run_rounded(
    run_node: Callable[..., tuple[Any, ...]], rounding: Rounding, *operands: Any, **context: Any
) -> tuple[Any, ...]:
    exact = run_node(*operands, **context)
    moved = run_node(*map(rounding.move, operands), **context)
    return tuple(map(rounding.round, exact, moved))


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Widen the inputs, weights, constants and casts of narrower floats in a model; return it."""
    for graph in graphs_within(model.graph):
        for tensor in graph.initializer:
            _widen(tensor)
        for node in graph.node:
            _widen_node(node)
        for info in (*graph.input, *graph.output, *graph.value_info):
            if info.type.tensor_type.elem_type in _NARROW:
                info.type.tensor_type.elem_type = TensorProto.DOUBLE
    return model


def _widen_node(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            _widen(attribute.t)
        elif attribute.name in _TYPES and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
        elif attribute.name in ("value_float", "value_floats"):
            values = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor = numpy_helper.from_array(np.asarray(values, np.float64))
            attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type in _NARROW:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
            array = array.view(ml_dtypes.bfloat16)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float64), tensor.name))

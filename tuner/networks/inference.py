"""Inference of shapes by ONNX, without the weights that it would copy."""

from math import prod

import onnx
from onnx import helper

# Elements from which the values of a constant do not tell shapes.
_LARGE = 1 << 16


def infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the ``value_info`` of all inferred values, its large constants inputs."""
    return onnx.shape_inference.infer_shapes(without_weights(model), data_prop=True)


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model whose large constants are inputs."""
    graph = onnx.GraphProto(name=model.graph.name)
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if prod(tensor.dims) < _LARGE:
            graph.initializer.append(tensor)
        else:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(info)
    opsets, version = model.opset_import, model.ir_version
    return helper.make_model(graph, opset_imports=opsets, ir_version=version)

"""Inference of shapes by ONNX, without the weights that it would copy."""

import re
from math import prod

import onnx
from onnx import helper, numpy_helper

from tuner.errors import ModelError, plain_reason, summary
from tuner.networks.onnx.onnx_file import tensors_within

# Elements from which the values of a constant do not tell shapes.
_LARGE = 1 << 16
# Text of onnx about one operator, behind the names of its errors.
_FAILED = re.compile(
    r".*?\(op_type:(?P<kind>\w+)(?:, node name: (?P<name>[^)]*))?\):?\s*"
    r"(?:\[\w*InferenceError\]\s*)?(?P<reason>.+)"
)


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


def find_fault(model: onnx.ModelProto) -> ModelError | None:
    """Return the error for a model whose weights or operands are invalid, as onnx describes it.

    Runtimes accept some models that onnx refuses, so this is the reason of another failure.
    """
    for tensor in tensors_within(model):
        try:
            numpy_helper.to_array(tensor)
        except Exception:  # of several types
            return _invalid(
                f"the elements of weight {tensor.name!r} do not fit its shape {list(tensor.dims)}"
            )
    try:
        small = without_weights(model)
        small.functions.extend(model.functions)
        onnx.shape_inference.infer_shapes(small, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:  # of several types
        failed = _FAILED.match(summary(error))
        reason = plain_reason(ValueError(failed["reason"])) if failed else ""
        if failed and reason.startswith(": "):
            return _invalid(" ".join(filter(None, (failed["kind"], failed["name"]))) + reason)
    return None


def _invalid(text: str) -> ModelError:
    return ModelError(f"the model is invalid: {text}; export it again", code="invalid-model")

"""Inlining of the function bodies that the ONNX standard or the model gives for some operators.

Importers lack many of the operators of the standard, and engines know every operator of the bodies.
"""

from collections import Counter

import onnx
import onnx.inliner

from tuner.networks.foreign import STANDARD_DOMAINS, is_foreign
from tuner.networks.graph import nodes_within
from tuner.networks.node_builder import opset_of

# Operators that importers lack; the others with a body are converted as they are.
_OPERATORS = (
    "AffineGrid",
    "Attention",
    "BlackmanWindow",
    "CausalConvWithState",
    "Celu",
    "CenterCropPad",
    "HammingWindow",
    "HannWindow",
    "LinearAttention",
    "NegativeLogLikelihoodLoss",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
    "Swish",
)


def inline_functions(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Inline the operators of the main graph with a standard body that importers lack.

    Args:
        model: Valid model with fixed input shapes, by which some bodies are chosen.

    Returns:
        A new model, and the number of inlined operators; the given one if it has no such operator.
    """
    used = _count(model)
    if not used:
        return model, 0
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    _add_defaults(inferred)
    # The inliner looks up the types of initialisers among those of other values.
    inferred.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in inferred.graph.initializer
    )
    # It looks up the type of an operand that is left out, by its empty name, as well.
    inferred.graph.value_info.append(
        onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None)
    )
    named = [("", name) for name in used]
    inlined = onnx.inliner.inline_selected_functions(inferred, named, inline_schema_functions=True)
    return inlined, used.total() - _count(inlined).total()


def align_functions(model: onnx.ModelProto) -> None:
    """Give functions of a model its opset where none of their operators differs, in place.

    The inliner leaves functions of another opset than that of the model.
    """
    opset = opset_of(model)
    for function in model.functions:
        for item in function.opset_import:
            if item.domain in STANDARD_DOMAINS and all(
                _version(node, item.version) == _version(node, opset)
                for node in nodes_within(function)
                if not is_foreign(node)
            ):
                item.version = opset


def _version(node: onnx.NodeProto, opset: int) -> int:
    """Return the opset that defined an operator as it is in another one; 0 if none has it."""
    try:
        return int(onnx.defs.get_schema(node.op_type, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def _count(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if _is_listed(node))


def _is_listed(node: onnx.NodeProto) -> bool:
    return not is_foreign(node) and node.op_type in _OPERATORS


def _add_defaults(model: onnx.ModelProto) -> None:
    """Write the defaults of attributes that are left out, which the inliner does not know."""
    opset = opset_of(model)
    for node in filter(_is_listed, nodes_within(model.graph)):
        given = {item.name for item in node.attribute}
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        for name, item in schema.attributes.items():
            if name not in given and item.default_value.type != onnx.AttributeProto.UNDEFINED:
                node.attribute.append(item.default_value)

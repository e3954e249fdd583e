"""Inlining of the function bodies that the ONNX standard gives for some operators.

Importers lack many of these operators, and engines know every operator of the bodies.
"""

import onnx
import onnx.inliner

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
    "RotaryEmbedding",
    "SwiGLU",
    "Swish",
)


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline the operators with a standard body that importers lack.

    Args:
        model: Valid model with fixed input shapes, by which some bodies are chosen.

    Returns:
        A new model; the given one if it has no such operator.
    """
    used = {node.op_type for node in model.graph.node if node.domain in ("", "ai.onnx")}
    named = [("", name) for name in _OPERATORS if name in used]
    if not named:
        return model
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    # The inliner looks up the types of initialisers among those of other values.
    inferred.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in inferred.graph.initializer
    )
    # It looks up the type of an operand that is left out, by its empty name, as well.
    inferred.graph.value_info.append(
        onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None)
    )
    return onnx.inliner.inline_selected_functions(inferred, named, inline_schema_functions=True)

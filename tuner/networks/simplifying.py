"""Simplification by onnxslim and shape inference, with large weights detached."""

import contextlib
import io
import math

import onnx

from tuner.errors import summary
from tuner.networks.graph import nodes_within
from tuner.networks.weights import is_degenerate

#: Fusions of onnxslim that folding.py replaces; its docstring gives the reasons.
_REPLACED_FUSIONS = [
    f"Fusion{layer}{step}" for layer in ("Conv", "ConvTranspose") for step in ("BN", "Mul", "Add")
]
_LARGE = 1 << 16


def simplify(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Fold constants, remove operators without effect, and infer the shape of every value.

    Args:
        model: Valid model with fixed input shapes; it is modified and must not be used again.

    Returns:
        The new model, with ``value_info`` and output shapes where they can be inferred, and a note
        if onnxslim failed and the graph is unchanged.
    """
    # With equal placeholder weights, different layers would be merged as duplicates.
    skipped = ["subexpression_elimination", "weight_tying"] if is_degenerate(model) else None
    weights = _detach(model)
    model = _infer_shapes(model)
    model, notes = _slim(model, skipped)
    for info in model.graph.output:
        for dim in info.type.tensor_type.shape.dim:
            dim.Clear()
    model = _infer_shapes(model)
    _attach(model, weights)
    return model, notes


def _slim(
    model: onnx.ModelProto, skipped: list[str] | None
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    import onnxslim

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            slimmed = onnxslim.slim(
                copy, skip_fusion_patterns=_REPLACED_FUSIONS, skip_optimizations=skipped
            )
    # A graph rewriter may fail in any way on an unusual model.
    except Exception as error:
        return model, (f"onnxslim could not simplify the graph: {summary(error, max_chars=200)}",)
    return slimmed, ()


def _infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Infer shapes where possible; those of unknown operators stay open."""
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _detach(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Turn large weights into inputs and return them.

    onnxslim writes and reads the whole model for each operator: VGG-19 takes 20 s with its weights.
    Only direct weights of layers are detached, because others may be folded.
    """
    graph = model.graph
    is_direct: dict[str, bool] = {}
    for node in nodes_within(graph):
        for index, name in enumerate(node.input):
            is_weight = index == 1 and node.op_type in {"Conv", "ConvTranspose", "Gemm"}
            is_direct[name] = is_weight and is_direct.get(name, True)
    detached = {
        tensor.name: tensor
        for tensor in graph.initializer
        if math.prod(tensor.dims) >= _LARGE and is_direct.get(tensor.name)
    }
    kept = [tensor for tensor in graph.initializer if tensor.name not in detached]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        for name, tensor in detached.items()
    )
    return detached


def _attach(model: onnx.ModelProto, weights: dict[str, onnx.TensorProto]) -> None:
    inputs = [info for info in model.graph.input if info.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(weights.values())

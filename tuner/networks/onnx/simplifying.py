"""Simplification by onnxslim and shape inference, with large weights detached."""

import contextlib
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import onnx

from tuner.errors import summary
from tuner.networks.onnx.folding.lengths import fold_lengths
from tuner.networks.onnx.folding.weight_folding import fold_weights
from tuner.networks.onnx.graph import (
    attribute,
    clear_output_shapes,
    constant_readers,
    fixed_shapes,
    nodes_within,
)
from tuner.networks.weights import is_degenerate

#: Fusions of onnxslim that folding.py replaces; its docstring gives the reasons.
_REPLACED_FUSIONS = [
    f"Fusion{layer}{step}" for layer in ("Conv", "ConvTranspose") for step in ("BN", "Mul", "Add")
]
_LARGE = 1 << 16
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
#: Positions of the operands whose values nothing but the kernels needs.
_WEIGHTS = {
    "Add": (0, 1),
    "Conv": (1,),
    "ConvTranspose": (1,),
    "DequantizeLinear": (0,),
    "GRU": (1, 2),
    "Gather": (0,),
    "Gemm": (1,),
    "LSTM": (1, 2),
    "MatMul": (0, 1),
    "Mul": (0, 1),
    "RNN": (1, 2),
}


def simplify(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Fold constants, remove operators without effect, and infer the shape of every value.

    Args:
        model: Valid model with fixed input shapes; it is modified and must not be used again.

    Returns:
        The new model, with ``value_info`` and output shapes where they can be inferred, and a note
        if onnxslim failed and the graph is unchanged.
    """
    notes: tuple[str, ...] = ()
    while True:
        n_nodes = len(model.graph.node)
        model, problems = _simplify_once(model)
        notes = tuple(dict.fromkeys((*notes, *problems)))
        # onnxslim gives up after ten turns, and shapes that a layer pads by take one each.
        if problems or len(model.graph.node) >= n_nodes or not _waits_for_constants(model.graph):
            return model, notes


def _simplify_once(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    # With equal placeholder weights, different layers would be merged as duplicates.
    skipped = ["subexpression_elimination", "weight_tying"] if is_degenerate(model) else None
    fold_weights(model.graph)
    # Drop the name of a node that another one has, as the turns of an unrolled loop do.
    names: set[str] = set()
    for node in nodes_within(model.graph):
        if node.name in names:
            node.ClearField("name")
        names.add(node.name)
    weights = _detach(model)
    fold_lengths(model)
    model = _infer_shapes(model)
    model, notes = _slim(model, skipped)
    clear_output_shapes(model.graph)
    model = _infer_shapes(model)
    inputs = [info for info in model.graph.input if info.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(weights.values())
    # Indices that are constant by now.
    fold_weights(model.graph)
    return model, notes


def _waits_for_constants(graph: onnx.GraphProto) -> bool:
    """Return whether a shape is unknown while an operator reads nothing but constants."""
    known = fixed_shapes(graph)
    if all(name in known for node in graph.node for name in node.output if name):
        return False
    constants = constant_readers(graph)
    return any(
        node.input and all(name in constants for name in node.input if name) for node in graph.node
    )


def _slim(
    model: onnx.ModelProto, skipped: list[str] | None
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    import onnxslim
    from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

    problem = ""
    # Its fusions leave values without an operator in some graphs.
    for patterns in (_REPLACED_FUSIONS, [*DEFAULT_FUSION_PATTERNS]):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        try:
            with contextlib.redirect_stdout(io.StringIO()), _corrected():
                slimmed = onnxslim.slim(
                    copy, skip_fusion_patterns=patterns, skip_optimizations=skipped
                )
            _check(slimmed, model)
        # A graph rewriter may fail in any way on an unusual model.
        except Exception as error:
            problem = problem or summary(error, max_chars=200)
        else:
            return slimmed, ()
    return model, (f"onnxslim could not simplify the graph: {problem}",)


@contextlib.contextmanager
def _corrected() -> Iterator[None]:
    """Keep onnxslim from inferring wrong lengths and from taking -0 for 0.

    By wrong lengths, it would drop reshapes. It rounds down the quotients of lengths that a model
    computes with floats: a padding of ``ceil(length / stride)`` would be wrong; folding computes it
    with ONNX Runtime. To indices of several axes, it gives the columns that an
    ``ArrayFeatureExtractor`` takes the same axes; it pads the first axes, whichever a Pad names. Of
    equal constants, it keeps one.
    """
    from onnxslim.core.shape_inference.registry import SHAPE_HANDLERS
    from onnxslim.third_party.onnx_graphsurgeon import Constant

    handlers, equals = dict(SHAPE_HANDLERS), Constant.__eq__

    def same(one: Any, other: Any) -> bool:
        return bool(equals(one, other)) and one.values.tobytes() == other.values.tobytes()

    SHAPE_HANDLERS["Cast"] = _Where(handlers["Cast"], lambda x: attribute(x, "to", 0) in _INTEGERS)
    SHAPE_HANDLERS["Pad"] = _Where(handlers["Pad"], lambda x: not any(x.input[3:]))
    SHAPE_HANDLERS.pop("ArrayFeatureExtractor", None)
    Constant.__eq__ = same
    try:
        yield
    finally:
        SHAPE_HANDLERS.update(handlers)
        Constant.__eq__ = equals


class _Where:
    """An inference of onnxslim for the nodes where it is right."""

    def __init__(self, handler: Any, is_right: Callable[[onnx.NodeProto], bool]) -> None:
        self._handler = handler
        self._is_right = is_right

    def infer_shape(self, node: onnx.NodeProto, context: Any) -> None:
        """Infer the shape, and perhaps the values, of the outputs."""
        if self._is_right(node):
            self._handler.infer_shape(node, context)


def _check(slimmed: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Check a simplified model, unless the model itself has what the checker does not know.

    Raises:
        onnx.checker.ValidationError: If simplification broke the model.
    """
    try:
        onnx.checker.check_model(slimmed)
    except onnx.checker.ValidationError:
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError:
            return
        raise


def _infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Infer shapes where possible; outputs of unknown operators keep none."""
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _detach(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Turn large weights into inputs and return them.

    onnxslim and the inference of shapes write and read the whole model several times: VGG-19 takes
    20 s with its weights. Only operands of nodes that also read something else are detached,
    because others may be folded.
    """
    graph = model.graph
    constants = constant_readers(graph)
    is_direct: dict[str, bool] = {}
    for node in nodes_within(graph):
        is_kept = node.op_type == "DequantizeLinear"
        is_folded = not is_kept and all(name in constants for name in node.input)
        for index, name in enumerate(node.input):
            is_weight = not is_folded and index in _WEIGHTS.get(node.op_type, ())
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

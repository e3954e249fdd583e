"""Check of operands whose shapes must fit and which neither the inference nor importers compare.

Kernels would read and write beyond the tensors. ONNX Runtime refuses such operands when it runs.
"""

from collections.abc import Callable, Mapping

import onnx

from tuner.errors import ModelError
from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import attribute, fixed_shapes

_Shape = tuple[int, ...]


def check_operands(model: onnx.ModelProto) -> None:
    """Check the operands of the main graph whose shapes are known.

    Raises:
        ModelError: If operands do not fit together.
    """
    shapes = fixed_shapes(model.graph)
    for node in model.graph.node:
        if is_foreign(node) or node.op_type not in _CHECKS:
            continue
        place, fits = _CHECKS[node.op_type]
        data, other = (
            shapes.get(name) for name in (node.input[0], (*node.input, *[""] * 4)[place])
        )
        if data is not None and other is not None and not fits(node, data, other):
            raise ModelError(
                f"{node.op_type} {node.name or node.output[0]!r} has operands of the shapes {data} "
                f"and {other}, which do not fit together: export the model again",
                code="invalid-model",
            )


def _lies_within(node: onnx.NodeProto, data: _Shape, indices: _Shape) -> bool:
    axis = int(attribute(node, "axis", 0)) % max(len(data), 1)
    pairs = zip(indices, data, strict=False)
    return len(data) == len(indices) and all(
        length <= whole for i, (length, whole) in enumerate(pairs) if i != axis
    )


def _has_batches(node: onnx.NodeProto, data: _Shape, indices: _Shape) -> bool:
    n_batches = int(attribute(node, "batch_dims", 0))
    return data[:n_batches] == indices[:n_batches]


def _has_length_for_each(node: onnx.NodeProto, data: _Shape, lengths: _Shape) -> bool:
    batch, time = (
        int(attribute(node, f"{name}_axis", i)) for name, i in (("batch", 1), ("time", 0))
    )
    return {batch, time} == {0, 1} and lengths == data[batch : batch + 1]


def _has_length_for_each_sequence(node: onnx.NodeProto, data: _Shape, lengths: _Shape) -> bool:
    batch = 1 - int(attribute(node, "layout", 0))
    return len(data) == 3 and lengths == data[batch : batch + 1]


def _has_scale_for_each(_node: onnx.NodeProto, data: _Shape, scales: _Shape) -> bool:
    return scales == data[1:2]


def _is_as_large(_node: onnx.NodeProto, data: _Shape, indices: _Shape) -> bool:
    return data == indices


# Place of the operand that is compared with the first one.
_CHECKS: Mapping[str, tuple[int, Callable[[onnx.NodeProto, _Shape, _Shape], bool]]] = {
    **dict.fromkeys(("GatherElements", "Scatter", "ScatterElements"), (1, _lies_within)),
    "GatherND": (1, _has_batches),
    "InstanceNormalization": (1, _has_scale_for_each),
    "MaxUnpool": (1, _is_as_large),
    "ReverseSequence": (1, _has_length_for_each),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (4, _has_length_for_each_sequence)),
}

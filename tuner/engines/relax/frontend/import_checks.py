"""Check of imported graphs: every value has the shape that ONNX gives it.

A converter that misreads an attribute would else become a library with wrong outputs.
"""

import logging
from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper
from tvm import relax

from tuner.engines.relax.graph.linkable import describe
from tuner.engines.relax.ir.tensor_types import is_fixed
from tuner.errors import ModelError
from tuner.networks.onnx.graph import fixed_shapes
from tuner.networks.onnx.inference import infer_shapes, without_weights

_LOG = logging.getLogger(__name__)
# ONNX infers one element for an axis of one and of several, and other shapes from there on.
_MISJUDGED = frozenset({"Einsum"})


def check_values(model: onnx.ModelProto, values: Mapping[str, Any]) -> None:
    """Check the shapes of all values of a graph, and the types of its outputs.

    Args:
        model: Model whose outputs have fixed shapes.
        values: Imported values by name.

    Raises:
        ModelError: If one differs from what ONNX infers; the message names the operator.
    """
    try:
        shapes = fixed_shapes(infer_shapes(_without_output_shapes(model)).graph)
    except Exception:  # onnx raises errors of several types; nothing is known to be misread then
        _LOG.warning("the shapes of %s cannot be inferred", model.graph.name, exc_info=True)
        return
    kinds = {info.name: info.type.tensor_type.elem_type for info in model.graph.output}
    for node in model.graph.node:
        if node.op_type in _MISJUDGED:
            return
        for name in node.output:
            if name in shapes and name in values:
                _check(node, name, values[name].ty, shapes[name], kinds.get(name, 0))


def _without_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without the declared shapes of outputs, which other runtimes do not read."""
    copy = without_weights(model)
    for info in copy.graph.output:
        info.type.tensor_type.ClearField("shape")
    return copy


def _check(
    node: onnx.NodeProto, name: str, kind: Any, shape: tuple[int, ...], element: int
) -> None:
    """Check one value; one whose shape depends on data is refused when it is lowered."""
    if not isinstance(kind, relax.TensorType) or kind.shape is None or not is_fixed(kind):
        return
    dtype = str(helper.tensor_dtype_to_np_dtype(element)) if element else str(kind.dtype)
    expected = f"{dtype}[{','.join(map(str, shape))}]"
    if describe(kind) != expected:
        raise ModelError(
            f"operator {node.op_type} was read as one whose output {name!r} is {describe(kind)}, "
            f"and ONNX says {expected}: replace it in the model, and report it with the model",
            code="misread-operator",
        )

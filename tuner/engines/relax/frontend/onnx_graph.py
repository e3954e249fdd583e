"""Import of ONNX graphs by TVM's converters and this package's."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.engines.relax.frontend.converters import CONVERTERS
from tuner.engines.relax.graph.linkable import describe
from tuner.engines.relax.ir.tensor_types import is_fixed
from tuner.errors import ModelError, described
from tuner.networks.onnx.foreign import is_foreign, refusal
from tuner.networks.onnx.graph import fixed_shapes
from tuner.networks.onnx.inference import find_fault, infer_shapes, without_weights

_LOG = logging.getLogger(__name__)


# ONNX infers one element for an axis of one and of several, and other shapes from there on.
_MISJUDGED = frozenset({"Einsum"})


def import_graph(model: onnx.ModelProto) -> tvm.IRModule:
    """Import a model whose weights are initialisers; they become constants.

    Raises:
        ModelError: If an operator has no converter, or its converter fails on it or misreads it.
    """
    # Operators of other domains may have a known name.
    known = {*onnx_frontend._get_convert_map(), *CONVERTERS, "Constant"}
    unknown = [node for node in model.graph.node if is_foreign(node) or node.op_type not in known]
    if unknown:
        raise refusal(model, unknown)
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    importer = _Importer(None, "float32")
    try:
        with described(lambda reason: _refusal("the graph", reason)):
            module = importer.from_onnx(model.graph, opset)
        check_values(model, importer.values)
    except ModelError as error:
        raise find_fault(model) or error from None
    return module


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]  # TVM has no types
    """Importer that prefers own converters, and names the operator that it cannot convert."""

    @property
    def values(self) -> Mapping[str, relax.Expr]:
        """Imported values of the graph, by name."""
        nodes: Mapping[str, relax.Expr] = self._nodes
        return nodes

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Leave the check to :func:`import_graph`, which knows the shapes."""

    def _convert_operator(
        self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        shapes = ", ".join("none" if value is None else describe(value.ty) for value in inputs)
        subject = f"operator {op_name} with inputs {shapes}"
        with described(lambda reason: _refusal(subject, reason)):
            if op_name == "Slice" and "starts" in attrs:
                # Bounds are inputs since opset 10.
                starts = attrs["starts"]
                for values in (starts, attrs["ends"], attrs.get("axes", range(len(starts)))):
                    inputs.append(relax.const(np.array(values, "int64")))
            if op_name in CONVERTERS:
                converted = CONVERTERS[op_name](self.bb, inputs, attrs, opset)
                if converted is not None:
                    return self.bb.normalize(converted)
            return super()._convert_operator(op_name, inputs, attrs, opset)


def _refusal(subject: str, reason: str) -> ModelError:
    return ModelError(
        f"{subject} cannot be converted{reason}; export the model with constant shapes and axes, "
        "or without this operator",
        code="unsupported-operator",
    )


def check_values(model: onnx.ModelProto, values: Mapping[str, Any]) -> None:
    """Check the shapes of all values of a graph, and the types of its outputs.

    Args:
        model: Model whose outputs have fixed shapes.
        values: Imported values by name.

    Raises:
        ModelError: If one differs from what ONNX infers; the message names the operator.
    """
    try:
        # Other runtimes do not read the declared shapes of outputs.
        copy = without_weights(model)
        for info in copy.graph.output:
            info.type.tensor_type.ClearField("shape")
        shapes = fixed_shapes(infer_shapes(copy).graph)
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

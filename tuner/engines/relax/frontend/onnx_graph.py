"""Import of ONNX graphs by TVM's converters and this package's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.engines.relax.frontend.converters import CONVERTERS
from tuner.engines.relax.frontend.import_checks import check_values
from tuner.engines.relax.graph.linkable import describe
from tuner.errors import ModelError, described
from tuner.networks.onnx.foreign import is_foreign, refusal
from tuner.networks.onnx.inference import find_fault


def import_graph(model: onnx.ModelProto) -> tvm.IRModule:
    """Import a model whose weights are initialisers; they become constants.

    Raises:
        ModelError: If an operator has no converter, or its converter fails on it or misreads it.
    """
    _refuse_unknown(model)
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


def _refuse_unknown(model: onnx.ModelProto) -> None:
    """Refuse operators without a converter, and operators of other domains with a known name.

    Raises:
        ModelError: If there is one.
    """
    known = {*onnx_frontend._get_convert_map(), *CONVERTERS, "Constant"}
    unknown = [node for node in model.graph.node if is_foreign(node) or node.op_type not in known]
    if unknown:
        raise refusal(model, unknown)


def _refusal(subject: str, reason: str) -> ModelError:
    return ModelError(
        f"{subject} cannot be converted{reason}; export the model with constant shapes and axes, "
        "or without this operator",
        code="unsupported-operator",
    )

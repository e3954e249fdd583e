"""Import of ONNX graphs, with converters of this package beside those of TVM."""

from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.engines.relax.converters import CONVERTERS
from tuner.engines.relax.linkable import describe
from tuner.errors import ModelError, described


def import_graph(model: onnx.ModelProto) -> tvm.IRModule:
    """Import a model whose weights are initialisers; they become constants.

    Raises:
        ModelError: If an operator has no converter, or its converter fails on it.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    importer = _Importer(None, "float32")
    with described(lambda kind: _refusal("the graph", kind)):
        return importer.from_onnx(model.graph, opset)


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]  # TVM has no types
    """Importer that prefers own converters, and names the operator that it cannot convert."""

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        known = {*onnx_frontend._get_convert_map(), *CONVERTERS, "If", "Constant"}
        unknown = sorted({_full_name(node) for node in graph.node if node.op_type not in known})
        if unknown:
            raise ModelError(
                f"the model has operators without a converter: {', '.join(unknown)}; replace them "
                "in the model, or export the model without them",
                code="unsupported-operator",
            )

    def _convert_operator(
        self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        shapes = ", ".join("none" if value is None else describe(value.ty) for value in inputs)
        with described(lambda kind: _refusal(f"operator {op_name} with inputs {shapes}", kind)):
            if op_name == "Slice" and "starts" in attrs:
                _add_bounds(inputs, attrs)
            if op_name in CONVERTERS:
                return self.bb.normalize(CONVERTERS[op_name](self.bb, inputs, attrs, opset))
            return super()._convert_operator(op_name, inputs, attrs, opset)


def _add_bounds(inputs: Any, attrs: dict[str, Any]) -> None:
    """Turn the bounds of a Slice before opset 10 into inputs."""
    starts = attrs["starts"]
    for values in (starts, attrs["ends"], attrs.get("axes", range(len(starts)))):
        inputs.append(relax.const(np.array(values, "int64")))


def _refusal(subject: str, kind: str) -> ModelError:
    return ModelError(
        f"{subject} cannot be converted ({kind}): the log of the process has the details; "
        "export the model with constant shapes and axes, or without this operator",
        code="unsupported-operator",
    )


def _full_name(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)

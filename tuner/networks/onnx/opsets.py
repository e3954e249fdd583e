"""Newer versions of the standard's operators, where rewrites need them."""

import logging

import numpy as np
import onnx
import onnx.version_converter

from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import check_model, fixed_shapes, nodes_within
from tuner.networks.onnx.inference import infer_shapes
from tuner.networks.onnx.node_builder import NodeBuilder, opset_of

_CLASSICAL = "ai.onnx.ml"
# The first version with all operators that forests of trees are rewritten as.
_MIN_OPSET = 13
# Since this version, slopes are aligned with the last axes of the data.
_BROADCASTS = 7

_LOG = logging.getLogger(__name__)


def raise_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in the version that its rewrites, the inference of onnx and importers need.

    Converters of classical machine learning write the lowest version that their few standard
    operators have, or none if there are none. The shapes of operators of the first versions are
    not inferred. Other models stay as they are, and so does one that the converter of onnx cannot
    convert.
    """
    nodes, opset = list(nodes_within(model.graph)), opset_of(model)
    is_classical = any(node.domain == _CLASSICAL for node in nodes)
    is_old = any(_lacks_inference(node, opset) for node in nodes)
    if not (is_classical or is_old) or opset >= _MIN_OPSET:
        return model
    if all(node.domain == _CLASSICAL for node in nodes):
        raised = onnx.ModelProto()
        raised.CopyFrom(model)
        kept = [item for item in model.opset_import if item.domain not in ("", "ai.onnx")]
        del raised.opset_import[:]
        raised.opset_import.extend([*kept, onnx.helper.make_opsetid("", _MIN_OPSET)])
        return raised
    return convert(model, _MIN_OPSET)


def _lacks_inference(node: onnx.NodeProto, opset: int) -> bool:
    """Return whether the shapes of an operator are inferred in later versions only."""
    if is_foreign(node) or _has_inference(node, opset):
        return False
    return _has_inference(node, _MIN_OPSET)


def _has_inference(node: onnx.NodeProto, opset: int) -> bool:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_type_and_shape_inference_function)


def convert(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Return a model in a newer version of the standard, or as it is if onnx cannot convert it."""
    # The binding raises errors of several types; the model is then refused where it is rewritten.
    try:
        converted = onnx.version_converter.convert_version(model, version)
        # Operators inside of branches and loops are not converted.
        check_model(converted)
        if opset_of(model) < _BROADCASTS <= version:
            _move_slopes(converted)
    except Exception as error:
        _LOG.info("the model keeps its opset %d: %s", opset_of(model), error)
        return model
    return converted


def _move_slopes(model: onnx.ModelProto) -> None:
    """Lay vectors of slopes along the channels, where the converter leaves them, in place."""
    ranks = {name: len(shape) for name, shape in fixed_shapes(infer_shapes(model).graph).items()}
    nodes = []
    for node in model.graph.node:
        n_axes = ranks.get(node.input[0], 0) if node.op_type == "PRelu" else 0
        if n_axes and ranks.get(node.input[1]) == 1:
            builder = NodeBuilder(node, model.graph)
            shape = builder.constant(np.array([-1, *[1] * (n_axes - 2)]))
            node.input[1] = builder.add("Reshape", node.input[1], shape)
            nodes += builder.nodes
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)

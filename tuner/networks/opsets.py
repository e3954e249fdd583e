"""Newer versions of the standard's operators, where rewrites need them."""

import logging

import onnx
import onnx.version_converter

from tuner.networks.graph import nodes_within
from tuner.networks.node_builder import opset_of

_CLASSICAL = "ai.onnx.ml"
# The first version with all operators that forests of trees are rewritten as.
_MIN_OPSET = 13

_LOG = logging.getLogger(__name__)


def raise_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of classical machine learning in the version that its rewrites need.

    Converters of such models write the lowest version that their few standard operators have, or
    none if there are none. Other models stay as they are, and so does one that the converter of
    onnx cannot convert.
    """
    nodes = list(nodes_within(model.graph))
    if all(node.domain != _CLASSICAL for node in nodes) or opset_of(model) >= _MIN_OPSET:
        return model
    if all(node.domain == _CLASSICAL for node in nodes):
        raised = onnx.ModelProto()
        raised.CopyFrom(model)
        kept = [item for item in model.opset_import if item.domain not in ("", "ai.onnx")]
        del raised.opset_import[:]
        raised.opset_import.extend([*kept, onnx.helper.make_opsetid("", _MIN_OPSET)])
        return raised
    return convert(model, _MIN_OPSET)


def convert(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Return a model in a newer version of the standard, or as it is if onnx cannot convert it."""
    # The binding raises errors of several types; the model is then refused where it is rewritten.
    try:
        converted = onnx.version_converter.convert_version(model, version)
        # Operators inside of branches and loops are not converted.
        onnx.checker.check_model(converted)
    except Exception as error:
        _LOG.info("the model keeps its opset %d: %s", opset_of(model), error)
        return model
    return converted

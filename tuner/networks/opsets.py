"""Newer versions of the standard's operators, where rewrites need them."""

import logging
import operator

import onnx
import onnx.version_converter

from tuner.networks.foreign import is_foreign
from tuner.networks.graph import attribute, check_model, nodes_within
from tuner.networks.node_builder import opset_of

_CLASSICAL = "ai.onnx.ml"
# The first version with all operators that forests of trees are rewritten as.
_MIN_OPSET = 13
_FIRST_SLICE_OF_INPUTS = 10
_FIRST_NEGATIVE_AXES = 11
_FIRST_WHERE = 9
# Operators that are rewritten with a Where.
_REWRITTEN = frozenset({"LpNormalization"})
_ONLY_FROM_THE_START = frozenset({"ArgMax", "ArgMin", "Concat", "Flatten", "Squeeze", "Unsqueeze"})
_MAX_INT32 = 2**31 - 1

_LOG = logging.getLogger(__name__)


def raise_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in the version that its rewrites, the inference of onnx and importers need.

    Converters of classical machine learning write the lowest version that their few standard
    operators have, or none if there are none. Models of the first versions may have forms of
    operators that runtimes read and the others misread. Other models stay as they are, and so does
    one that the converter of onnx cannot convert.
    """
    nodes, opset = list(nodes_within(model.graph)), opset_of(model)
    is_classical = any(node.domain == _CLASSICAL for node in nodes)
    is_old = any(not is_foreign(node) and _is_misread(node, opset) for node in nodes)
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


def _is_misread(node: onnx.NodeProto, opset: int) -> bool:
    """Return whether an operator of an old version has a form that only runtimes read."""
    numbers = {name: attribute(node, name) or [] for name in ("axes", "starts", "ends")}
    if node.op_type == "Slice" and opset < _FIRST_SLICE_OF_INPUTS:
        is_empty = any(map(operator.ge, numbers["starts"], numbers["ends"]))
        return is_empty or any(n < 0 or n > _MAX_INT32 for each in numbers.values() for n in each)
    if node.op_type in _REWRITTEN and opset < _FIRST_WHERE:
        return True
    # Axes from the end came with opset 11; of most operators they were read before.
    axes = [*numbers["axes"], attribute(node, "axis") or 0]
    if node.op_type in _ONLY_FROM_THE_START and opset < _FIRST_NEGATIVE_AXES and min(axes) < 0:
        return True
    lacks_inference = not _has_inference(node, opset)
    return lacks_inference and _has_inference(node, _MIN_OPSET)


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
    except Exception as error:
        _LOG.info("the model keeps its opset %d: %s", opset_of(model), error)
        return model
    return converted

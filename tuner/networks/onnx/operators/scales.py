"""Scales of Resize and Upsample with which every precision gives the same number of outputs."""

from math import inf

import numpy as np
import onnx
from onnx import helper

from tuner.networks.onnx.node_builder import Replacement

# Versions in which Upsample had its scales as an input, and Resize another input before them.
_INPUT_OF_UPSAMPLE, _INPUT_OF_REGIONS = 9, 11


def round_scales(b: Replacement) -> bool:
    """Raise scales whose product with a length is a whole number in float32 only.

    ONNX Runtime rounds the product to float32 before it takes the floor, the inference of shapes
    does not: seven pixels scaled by eleven sevenths are eleven, or ten.

    Returns:
        False if no scale is raised.
    """
    is_attribute = b.node.op_type == "Upsample" and b.opset < _INPUT_OF_UPSAMPLE
    is_third = b.node.op_type == "Resize" and b.opset >= _INPUT_OF_REGIONS
    index = 2 if is_third else 1
    given = b.attribute("scales") if is_attribute else b.array(index)
    scales = np.array([] if given is None else given, np.float32)
    if not scales.size:
        return False
    shape = b.shape(b.input(0))
    lengths = [shape[axis] for axis in b.attribute("axes", range(len(shape)))]
    rounded = np.floor(np.array(lengths, np.float32) * scales)
    exact = np.floor(np.array(lengths, np.float64) * scales)
    if (rounded == exact).all():
        return False
    raised = np.where(rounded == exact, scales, np.nextafter(scales, np.float32(inf)))
    node = onnx.NodeProto()
    node.CopyFrom(b.node)
    if is_attribute:
        (attribute,) = [item for item in node.attribute if item.name == "scales"]
        attribute.CopyFrom(helper.make_attribute("scales", raised.tolist()))
    else:
        node.input[index] = b.constant(raised)
    b.nodes.append(node)
    return True

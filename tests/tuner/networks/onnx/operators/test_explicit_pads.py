"""Rules for padding become widths of padding."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.networks import models
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean


def _model(op: str, **attributes: object) -> onnx.ModelProto:
    """Return a model of one convolution of stride 2 over 5 x 8 pixels."""
    weight = np.ones((3, 3, 3, 3), "float32")
    node = helper.make_node(op, ["data", "w"], ["y"], strides=[2, 2], **attributes)
    return models.model([node], {"data": (1, 3, 5, 8)}, {"y": ("n", "c", "h", "w")}, {"w": weight})


@pytest.mark.parametrize(
    ("mode", "pads"),
    [("SAME_UPPER", [1, 0, 1, 1]), ("SAME_LOWER", [1, 1, 1, 0]), ("VALID", [0, 0, 0, 0])],
)
def test_a_convolution_has_its_padding(mode: str, pads: list[int]) -> None:
    """The odd row or column is at the end, or at the beginning."""
    network = clean(_model("Conv", auto_pad=mode))

    (node,) = onnx.load_from_string(network.model).graph.node
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    assert given["pads"] == pads
    assert given.get("auto_pad", b"NOTSET") == b"NOTSET"


def test_an_output_shape_beyond_the_padding_is_refused() -> None:
    """No padding makes a transposed convolution larger."""
    with pytest.raises(ModelError, match=r"output_shape \[20, 17\] is larger than that") as caught:
        clean(_model("ConvTranspose", output_shape=[20, 17]))
    assert caught.value.code == "invalid-model"

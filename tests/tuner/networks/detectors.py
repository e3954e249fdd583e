"""Small models with operators that choose among their data."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.tuner.networks.models import Array, model

_NODES = (
    helper.make_node("MatMul", ["data", "w"], ["boxes"]),
    helper.make_node("MatMul", ["data", "v"], ["rows"]),
    helper.make_node("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
    helper.make_node("Sigmoid", ["columns"], ["scores"]),
    helper.make_node("NonMaxSuppression", ["boxes", "scores", "n", "iou", "limit"], ["places"]),
    helper.make_node("Gather", ["places", "last"], ["numbers"], axis=1),
    helper.make_node("Gather", ["boxes", "numbers"], ["kept"], axis=1),
)


def detector(*more: onnx.NodeProto, **outputs: tuple[int | str, ...]) -> onnx.ModelProto:
    """Make a model of boxes and scores of 16 rows, and of the boxes that suppression keeps.

    Args:
        more: Nodes behind ``kept``, the boxes, and ``places``, the result of the suppression.
        outputs: Shapes of outputs by name; by default of ``kept``, ``scores`` and ``places``.
    """
    rng = np.random.default_rng(3)
    weights: dict[str, Array] = {
        "w": rng.standard_normal((8, 4)).astype("float32"),
        "v": rng.standard_normal((8, 1)).astype("float32"),
        "n": np.array([5]),
        "iou": np.array([0.4], "float32"),
        "last": np.array(2),
    }
    shapes = outputs or {"kept": (1, "k", 4), "scores": (1, 1, 16), "places": ("k", 3)}
    proto = model([*_NODES, *more], {"data": (1, 16, 8), "limit": (1,)}, dict(shapes), weights)
    for info in proto.graph.output:
        if info.name == "places":
            info.type.tensor_type.elem_type = TensorProto.INT64
    return proto


def feeds(limit: float = 0.5) -> dict[str, Array]:
    """Return rows, and the score that boxes must have."""
    data = np.random.default_rng(5).random((1, 16, 8), dtype=np.float32) - 0.5
    return {"data": data, "limit": np.array([limit], "float32")}

"""A classifier as the converters of classical machine learning write it."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper


def classifier(opset: int = 17, **labels: Any) -> onnx.ModelProto:
    """Return a linear classifier of three classes, as skl2onnx writes it."""
    weights = [float(each) for each in np.random.default_rng(0).standard_normal(12)]
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["data"],
            ["number", "sums"],
            domain="ai.onnx.ml",
            coefficients=weights,
            intercepts=[0.1, 0.2, 0.3],
            classlabels_ints=[0, 1, 2],
        ),
        helper.make_node("Cast", ["number"], ["label"], to=TensorProto.INT64),
        helper.make_node("Normalizer", ["sums"], ["scores"], domain="ai.onnx.ml", norm="L1"),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", **labels),
    ]
    key = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    pair = helper.make_map_type_proto(
        key, helper.make_tensor_type_proto(elem_type=TensorProto.FLOAT, shape=[])
    )
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["n", 4])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
            helper.make_value_info("maps", helper.make_sequence_type_proto(pair)),
        ],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)

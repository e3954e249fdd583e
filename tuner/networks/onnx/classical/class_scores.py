"""Scores of classes that a classifier returns as one map for each row, returned as a tensor.

Converters of scikit-learn, LightGBM, XGBoost and CatBoost end classifiers with a ZipMap by default.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.networks.onnx.classical.operators import DOMAIN
from tuner.networks.onnx.graph import attribute


def open_maps(model: onnx.ModelProto) -> tuple[str, ...]:
    """Replace each output of a ZipMap by the tensor of its scores, in place.

    Its columns are in the order of the labels, as the keys of the maps are in ONNX Runtime.

    Returns:
        A note for each output.
    """
    graph = model.graph
    maps = {info.name: info for info in graph.output if info.type.HasField("sequence_type")}
    notes = []
    for node in graph.node:
        if (node.domain, node.op_type) != (DOMAIN, "ZipMap") or node.output[0] not in maps:
            continue
        labels: list[int] | list[bytes] = attribute(node, "classlabels_int64s", [])
        labels = labels or attribute(node, "classlabels_strings", [])
        if not labels:
            continue
        order = numpy_helper.from_array(np.argsort(labels), f"{node.output[0]}_order")
        graph.initializer.append(order)
        # Of the same domain: forests without a version of the standard are raised later.
        node.CopyFrom(
            helper.make_node(
                *("ArrayFeatureExtractor", [node.input[0], order.name], node.output), domain=DOMAIN
            )
        )
        info = maps[node.output[0]]
        info.CopyFrom(
            helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, [None, len(labels)])
        )
        notes.append(f"{info.name} has a column for each of {len(labels)} classes, not maps")
    return tuple(notes)

"""Models of one node, and their outputs before and after cleaning."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper, numpy_helper

from tests.tuner.networks.models import Array, run
from tuner.networks.onnx.cleaning import clean

_NO_WEIGHTS: Mapping[str, Array] = {}


def node_model(
    op: str,
    feeds: Mapping[str, Array],
    slots: Sequence[str],
    weights: Mapping[str, Array] = _NO_WEIGHTS,
    n_outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one node whose outputs have no declared shapes, only their ranks.

    Args:
        op: Operator, behind its domain and a colon.
        feeds: Arrays of the shapes of the inputs.
        slots: Names of the operands in order; empty for one that is left out.
        weights: Constants.
        n_outputs: Number of outputs.
        **attributes: Attributes of the node.
    """
    domain, _, name = op.rpartition(":")
    outputs = [f"y{index}" for index in range(n_outputs)]
    inputs = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for key, each in feeds.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(name, slots, outputs, domain=domain, **attributes)],
        "test",
        inputs,
        [onnx.ValueInfoProto(name=each) for each in outputs],
        [numpy_helper.from_array(each, key) for key, each in weights.items()],
    )
    versions = {"": 18, "com.microsoft": 1, "ai.onnx.ml": 3}
    opsets = [helper.make_opsetid(*each) for each in versions.items()]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    expected = run(proto.SerializeToString(), dict(feeds))
    for info, array in zip(proto.graph.output, expected, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        dims = [f"d{axis}" for axis in range(array.ndim)]
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, dims))
    return proto


def both(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> tuple[list[Array], list[Array]]:
    """Return the outputs of a cleaned model, which has only standard operators, and of the model.

    Both are ONNX Runtime's.
    """
    network = clean(proto)
    nodes = onnx.load_from_string(network.model).graph.node
    assert not {node.domain for node in nodes} - {""}
    return run(network.model, dict(feeds)), run(proto.SerializeToString(), dict(feeds))

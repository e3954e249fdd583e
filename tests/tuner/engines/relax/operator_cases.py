"""Cases of operators, many of which are one model, so that a test takes a fraction of a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.networks.models import Array, run

OPSET = 21


@dataclass(frozen=True)
class Case:
    """A small graph; its outputs are those that no node reads.

    Attributes:
        name: Name, unique in its family.
        nodes: Nodes; names of values need not be unique among cases.
        inputs: Arrays by name.
        weights: Constants by name.
        tolerance: Largest difference, relative to the largest output.
    """

    name: str
    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array] = field(default_factory=dict)
    tolerance: float = 1e-5

    @property
    def outputs(self) -> list[str]:
        """Names of its outputs."""
        read = {name for node in self.nodes for name in node.input}
        written = [name for node in self.nodes for name in node.output if name]
        return [name for name in written if name not in read]


def case(
    name: str,
    op: str,
    *inputs: Array,
    weights: Sequence[Any] = (),
    n_outputs: int = 1,
    tolerance: float = 1e-5,
    domain: str = "",
    **attributes: Any,
) -> Case:
    """Return a case of one node.

    Args:
        name: Name of the case.
        op: Operator.
        inputs: Arrays that are inputs of the model.
        weights: Arrays that follow as constants; None leaves an input out.
        n_outputs: Number of outputs.
        tolerance: See :class:`Case`.
        domain: Domain of the operator.
        **attributes: Attributes of the node.
    """
    names = [f"x{index}" for index in range(len(inputs))]
    constants = {f"w{i}": np.asarray(w) for i, w in enumerate(weights) if w is not None}
    slots = [f"w{i}" if w is not None else "" for i, w in enumerate(weights)]
    outputs = [f"y{index}" for index in range(n_outputs)]
    node = helper.make_node(op, [*names, *slots], outputs, domain=domain, **attributes)
    return Case(name, [node], dict(zip(names, inputs, strict=True)), constants, tolerance)


def combine(cases: Sequence[Case]) -> tuple[onnx.ModelProto, dict[str, Array], list[Array]]:
    """Return one model of all cases, its inputs, and its outputs under ONNX Runtime."""
    nodes, weights, outputs = [], [], []
    feeds: dict[str, Array] = {}
    for each in cases:
        prefix = f"{each.name}_"
        for node in each.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for names in (copy.input, copy.output):
                renamed = [prefix + name if name else "" for name in names]
                del names[:]
                names.extend(renamed)
            nodes.append(copy)
        weights += [numpy_helper.from_array(a, prefix + n) for n, a in each.weights.items()]
        feeds |= {prefix + name: array for name, array in each.inputs.items()}
        outputs += [prefix + name for name in each.outputs]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    graph = helper.make_graph(
        nodes, "cases", inputs, [onnx.ValueInfoProto(name=name) for name in outputs], weights
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    expected = run(proto.SerializeToString(), feeds)
    for info, array in zip(graph.output, expected, strict=True):
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, dtype, array.shape))
    proto.graph.CopyFrom(graph)
    return proto, feeds, expected


def _transposed(name: str, kernel: tuple[int, ...], **attributes: Any) -> Case:
    data = draw(2, 8, *(6, 5, 4)[: len(kernel)])
    weights = {
        "w": draw(8, 24 // attributes.get("group", 1), *kernel, seed=1),
        "b": draw(24, seed=2),
    }
    nodes = [
        helper.make_node("ConvTranspose", ["data", "w", "b"], ["t"], **attributes),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    return Case(name, nodes, {"data": data}, weights)


TRANSPOSED_CONVOLUTIONS = [
    _transposed("overlapping", (4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    _transposed("disjoint", (2, 2), strides=[2, 2]),
    _transposed("odd", (3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
    _transposed("dense", (3, 3), strides=[1, 1], pads=[1, 0, 2, 1]),
    _transposed("sparse", (1, 1), strides=[3, 3], output_padding=[2, 1]),
    _transposed("same", (4, 4), strides=[2, 2], auto_pad="SAME_UPPER"),
    _transposed(
        *("mixed", (3, 5)),
        strides=[3, 2],
        dilations=[2, 1],
        pads=[0, 3, 1, 2],
        group=2,
        output_padding=[2, 0],
    ),
    _transposed("line", (5,), strides=[4], pads=[3, 1]),
    _transposed("cropped", (7,), strides=[1], pads=[6, 0]),
    _transposed("depthwise", (3,), strides=[2], dilations=[3], pads=[5, 4], group=8),
    _transposed("volume", (2, 3, 2), strides=[2, 1, 3], pads=[0, 1, 0, 1, 1, 0], group=4),
]

_ROWS = draw(2, 3, 300, seed=3)
SCANS = [
    case("sum", "CumSum", _ROWS, weights=[np.array(-1)]),
    case("sum_before", "CumSum", _ROWS, weights=[np.array(1)], exclusive=1),
    case("sum_behind", "CumSum", _ROWS, weights=[np.array(2)], exclusive=1, reverse=1),
    case("sum_of_whole", "CumSum", np.arange(200).reshape(2, 100) % 7, weights=[np.array(1)]),
    case("top", "TopK", _ROWS, weights=[np.array([7])], n_outputs=2),
    case("bottom", "TopK", _ROWS, weights=[np.array([2])], n_outputs=2, axis=1, largest=0),
]

FAMILIES = {
    "transposed convolutions": TRANSPOSED_CONVOLUTIONS,
    "scans": SCANS,
}

"""Scans whose turns do not depend on each other, computed in one pass over all turns.

Converters of scikit-learn write the distances of two sets of rows as such a Scan, with a turn for
each row that the model has learnt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.networks.onnx.control_flow.subgraphs import inline
from tuner.networks.onnx.graph import Array, attribute, constant_readers, fixed_shapes

_Shape = tuple[int, ...]
_ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Cos", "Div", "Equal", "Erf", "Exp", "Floor"),
        *("Greater", "GreaterOrEqual", "Identity", "IsNaN", "Less", "LessOrEqual", "Log", "Max"),
        *("Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round"),
        *("Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor"),
    }
)
_REDUCTIONS = frozenset(
    f"Reduce{kind}"
    for kind in (
        *("L1", "L2", "LogSum", "LogSumExp", "Max"),
        *("Mean", "Min", "Prod", "Sum", "SumSquare"),
    )
)
_FIRST_AXES = (
    "scan_input_axes",
    "scan_input_directions",
    "scan_output_axes",
    "scan_output_directions",
)


def map_turns(node: onnx.NodeProto, model: onnx.ModelProto) -> list[onnx.NodeProto] | None:
    """Return the nodes that compute all turns of a Scan at once.

    None if a turn depends on another one, or an operator has no rule.

    Every value of the body that differs between turns gets an axis of turns in front. Constants
    become initialisers of the graph.

    Args:
        node: A Scan of the main graph.
        model: Simplified model; its ``value_info`` gives the shapes of what the Scan reads.
    """
    if node.op_type != "Scan" or any(any(attribute(node, key, [])) for key in _FIRST_AXES):
        return None
    body, n_reads = attribute(node, "body"), int(attribute(node, "num_scan_inputs", 0))
    outer = fixed_shapes(model.graph)
    if len(body.input) != len(node.input) or any(name not in outer for name in node.input):
        return None
    given = dict(zip((info.name for info in body.input), node.input, strict=True))
    n_states = len(given) - n_reads
    reads = {name: outer[given[name]] for name in [*given][n_states:]}
    lengths = {shape[:1] for shape in reads.values()}
    shapes = {name: outer[value] for name, value in given.items()}
    shapes |= {name: shape[1:] for name, shape in reads.items()}
    # A scalar has no turns, and the model is refused.
    if len(lengths) != 1 or () in lengths or not _keeps_states(body, n_states):
        return None
    ((n_turns,),) = lengths
    constants = {**constant_readers(model.graph), **constant_readers(body)}
    turns = _Turns(body, _infer(body, model, {**outer, **shapes}), constants, n_turns, {*reads})
    if not all(turns.add(inner) for inner in body.node):
        return None
    if any(info.name not in turns.stacked for info in body.output[n_states:]):
        return None
    inlined = inline(turns.graph, f"{next(filter(None, node.output))}_turns@", given)
    model.graph.initializer.extend(inlined.initialisers)
    results = [*node.input[:n_states], *inlined.outputs[n_states:]]
    copies = [
        helper.make_node("Identity", [name], [output])
        for name, output in zip(results, node.output, strict=True)
        if output
    ]
    return [*inlined.nodes, *copies]


def _keeps_states(body: onnx.GraphProto, n_states: int) -> bool:
    """Return whether every turn passes its states on as they are."""
    sources = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    pairs = zip(body.input[:n_states], body.output[:n_states], strict=True)
    return all(state.name in (end.name, sources.get(end.name)) for state, end in pairs)


def _infer(
    body: onnx.GraphProto, model: onnx.ModelProto, known: Mapping[str, _Shape]
) -> dict[str, _Shape]:
    """Return the shapes of the values of one turn and of the graph around it.

    Args:
        known: Shapes of the inputs of the body, and of the values of the graph around it.
    """
    types = {
        info.name: info.type.tensor_type.elem_type
        for info in (*model.graph.value_info, *model.graph.input, *model.graph.output, *body.input)
    }
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    used = {name for node in body.node for name in node.input}
    used |= {info.name for info in body.input}
    # Axes are constants of the graph around it where others have the same.
    axes = [
        each
        for each in model.graph.initializer
        if each.name in used and each.data_type == onnx.TensorProto.INT64
    ]
    inputs = [
        helper.make_tensor_value_info(name, types[name], known[name])
        for name in sorted(used & known.keys() & types.keys())
    ]
    graph = helper.make_graph(body.node, "turn", inputs, [], [*body.initializer, *axes])
    turn = helper.make_model(graph, opset_imports=model.opset_import)
    inferred = onnx.shape_inference.infer_shapes(turn, data_prop=True)
    return {**known, **fixed_shapes(inferred.graph)}


@dataclass
class _Turns:
    """The body of a Scan, changed to compute all turns.

    Attributes:
        shapes: Shapes of the values of one turn, by name.
        constants: Constants of the body and of the graph around it, by name.
        stacked: Names of the values with an axis of turns so far.
    """

    body: onnx.GraphProto
    shapes: Mapping[str, _Shape]
    constants: Mapping[str, Callable[[], Array]]
    n_turns: int
    stacked: set[str]

    def __post_init__(self) -> None:
        self.graph = onnx.GraphProto()
        self.graph.CopyFrom(self.body)
        del self.graph.node[:]

    def add(self, node: onnx.NodeProto) -> bool:
        """Append a node for all turns; return False if there is no rule for it."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        stacked = [name for name in node.input if name in self.stacked]
        is_known = all(name in self.shapes for name in node.input if name)
        if not stacked:
            # It may be one that no rule looks into, if it is the same in every turn.
            is_added = not any(item.HasField("g") for item in node.attribute)
        elif not is_known or node.domain or len(node.output) != 1:
            is_added = False
        elif node.op_type in _REDUCTIONS:
            is_added = stacked == [node.input[0]] and self._reduce(copy)
        else:
            # The bounds of a Clip are scalars.
            is_bounded = node.op_type == "Clip" and stacked == [node.input[0]]
            is_added = is_bounded or node.op_type in _ELEMENTWISE
            self._align(copy)
        if stacked:
            self.stacked.update(node.output)
        self.graph.node.append(copy)
        return is_added

    def _align(self, node: onnx.NodeProto) -> None:
        """Give operands of fewer axes ones behind the axis of turns."""
        rank = max(len(self.shapes[name]) for name in node.input if name)
        for index, name in enumerate(node.input):
            shape = self.shapes.get(name, ())
            if name in self.stacked and len(shape) < rank:
                aligned = f"@{node.output[0]}@{index}"
                ones = [1] * (rank - len(shape))
                target = self._constant(f"{aligned}@shape", [self.n_turns, *ones, *shape])
                self.graph.node.append(helper.make_node("Reshape", [name, target], [aligned]))
                node.input[index] = aligned

    def _reduce(self, node: onnx.NodeProto) -> bool:
        """Count the axes of a reduction from the end."""
        rank = len(self.shapes[node.input[0]])
        axes = attribute(node, "axes", None)
        if len(node.input) > 1 and node.input[1]:
            reader = self.constants.get(node.input[1])
            axes = reader().tolist() if reader else None
        if not axes:
            return False
        behind = [int(axis) % rank - rank for axis in axes]
        if len(node.input) > 1:
            node.input[1] = self._constant(f"@{node.output[0]}@axes", behind)
        else:
            next(item for item in node.attribute if item.name == "axes").ints[:] = behind
        return True

    def _constant(self, name: str, value: list[int]) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
        return name

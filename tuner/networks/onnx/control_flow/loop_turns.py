"""Count of the turns of a Loop whose condition does not depend on the data."""

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.errors import ModelError
from tuner.networks.onnx.graph import Array, attribute, constant_readers

# A condition is computed for each turn in about a tenth of a millisecond.
_MAX_COUNTED = 10_000
_ENDLESS = 2**63 - 1


def count_turns(node: onnx.NodeProto, model: onnx.ModelProto) -> int | None:
    """Return the number of turns of a Loop; None if it depends on the data.

    Raises:
        ModelError: If a condition that is computed still holds after more turns than are counted.
    """
    constants = constant_readers(model.graph)
    trips, start = [*node.input, "", ""][:2]
    if {trips, start} - {"", *constants}:
        return None
    limit = int(constants[trips]().max(initial=0)) if trips else _ENDLESS
    if limit < 1 or (start and not constants[start]().all()):
        return 0
    body = attribute(node, "body")
    condition = body.output[0].name
    sources = {n.output[0]: n.input[0] for n in body.node if n.op_type == "Identity"}
    while condition in sources:
        condition = sources[condition]
    inner = {**constants, **constant_readers(body)}
    if condition == body.input[1].name or (condition in inner and inner[condition]().all()):
        return limit
    return _simulate(node, body, model, limit)


def _simulate(
    node: onnx.NodeProto, body: onnx.GraphProto, model: onnx.ModelProto, limit: int
) -> int | None:
    """Run the part of a body that computes its condition; None if it reads anything else."""
    from onnx.reference import ReferenceEvaluator

    outer = constant_readers(model.graph)
    states = dict(zip((i.name for i in body.input[2:]), node.input[2:], strict=True))
    results = {i.name: o.name for i, o in zip(body.input[2:], body.output[1:], strict=False)}
    part = _Part(body)
    # States that the condition reads, and states that their updates read.
    read: list[str] = []
    pending = [body.output[0].name]
    while pending:
        for name in part.add(pending.pop()) & states.keys() - {*read}:
            read.append(name)
            pending.append(results[name])
    counter, goes_on = body.input[:2]
    constants = part.leaves - {counter.name, goes_on.name, *states}
    if constants - outer.keys() or any(states[name] not in outer for name in read):
        return None
    names = [body.output[0].name, *(results[name] for name in read)]
    proto = part.as_model({name: outer[name]() for name in constants}, names, model)
    values: dict[str, Any] = {name: outer[states[name]]() for name in read}
    # The reference lacks operators, and operators with graphs read values that the part lacks.
    try:
        evaluator = ReferenceEvaluator(proto)
        for turn in range(min(limit, _MAX_COUNTED)):
            feeds = {counter.name: as_declared(counter, turn), **values}
            feeds[goes_on.name] = as_declared(goes_on, True)
            computed = evaluator.run(names, feeds)
            if not np.asarray(computed[0]).all():
                return turn + 1
            values = dict(zip(read, computed[1:], strict=True))
    except Exception:
        return None
    if limit > _MAX_COUNTED:
        raise ModelError(
            f"the condition of a Loop still holds after {_MAX_COUNTED} turns, and more are not "
            "counted: export the model with a constant number of turns, or export the body of the "
            "loop and call the library in a loop",
            code="loop",
        )
    return limit


def as_declared(info: onnx.ValueInfoProto, value: int | bool) -> Array:
    """Return a counter or a condition in the rank that the body of a Loop declares for it."""
    return np.full([1] * len(info.type.tensor_type.shape.dim), value)


class _Part:
    """Nodes of a graph that some of its values are computed by.

    Attributes:
        nodes: Positions of the nodes.
        leaves: Names of the values that they read from outside, without the graph's own constants.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes: set[int] = set()
        self.leaves: set[str] = set()
        self._graph = graph
        self._own = {tensor.name for tensor in graph.initializer}
        self._makers = {name: index for index, n in enumerate(graph.node) for name in n.output}

    def add(self, name: str) -> set[str]:
        """Add what computes a value; return the values that it reads from outside."""
        leaves: set[str] = set()
        pending = [name]
        while pending:
            value = pending.pop()
            if value not in self._makers:
                leaves |= {value} - self._own - {""}
            elif self._makers[value] not in self.nodes:
                self.nodes.add(self._makers[value])
                pending += self._graph.node[self._makers[value]].input
        self.leaves |= leaves
        return leaves

    def as_model(
        self, constants: dict[str, Array], names: list[str], model: onnx.ModelProto
    ) -> onnx.ModelProto:
        """Return the nodes as a model that computes the values of these names."""
        nodes = [node for index, node in enumerate(self._graph.node) if index in self.nodes]
        weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        graph = helper.make_graph(
            nodes,
            "condition",
            list(self._graph.input),
            [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names)],
            [*self._graph.initializer, *weights],
        )
        return helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)

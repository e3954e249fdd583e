"""Unrolling of Loop and Scan nodes with a constant number of turns; refusal of the others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.errors import ModelError
from tuner.networks.onnx.control_flow.loop_maps import map_turns
from tuner.networks.onnx.control_flow.loop_turns import as_declared, count_turns
from tuner.networks.onnx.control_flow.subgraphs import inline
from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import (
    Array,
    attribute,
    count_uses,
    fixed_shapes,
    has_fixed_shape,
    nodes_within,
)
from tuner.networks.onnx.node_builder import opset_of

# A loop of constants is folded, which takes about a microsecond a turn and operator.
_MAX_TURNS = 1_000_000
# Operators of all unrolled loops: each is a kernel call or part of one.
_MAX_OPERATORS = 20_000


def check_loops(model: onnx.ModelProto) -> None:
    """Check that no Loop of the model has a huge constant number of turns.

    Raises:
        ModelError: If one has.
    """
    for node in nodes_within(model.graph):
        turns = count_turns(node, model) if _is_loop(node) and node.op_type == "Loop" else None
        if turns is not None and turns > _MAX_TURNS:
            raise ModelError(
                f"a Loop has {turns} turns, and at most {_MAX_TURNS} can be computed while the "
                "model is loaded: export the model without it",
                code="loop",
            )


def unroll_loops(model: onnx.ModelProto) -> int:
    """Unroll every Loop and Scan of the main graph with a known number of turns, in place.

    Scans whose turns do not depend on each other become operators over all turns.

    Args:
        model: Simplified model; its ``value_info`` gives the lengths of what a Scan reads.

    Returns:
        Number of unrolled nodes.

    Raises:
        ModelError: If unrolling yields too many operators.
    """
    graph = model.graph
    if not any(_is_loop(node) for node in graph.node):
        return 0
    nodes: list[onnx.NodeProto] = []
    n_unrolled = n_operators = 0
    for node in graph.node:
        mapped = map_turns(node, model) if _is_loop(node) else None
        if mapped is not None:
            nodes += mapped
            n_unrolled += 1
            continue
        plan = _PLANS[node.op_type](node, model) if _is_loop(node) else None
        if plan is None:
            nodes.append(node)
            continue
        n_operators += plan.n_operators
        _check_size(node, plan, n_operators)
        nodes += _unrolled(node, plan, graph, opset_of(model))
        n_unrolled += 1
    del graph.node[:]
    graph.node.extend(nodes)
    return n_unrolled


def refuse_loops(model: onnx.ModelProto) -> None:
    """Check that no Loop or Scan is left, as engines have no kernel for one.

    Raises:
        ModelError: If one is left.
    """
    for node in nodes_within(model.graph):
        if _is_loop(node):
            is_empty = node.op_type == "Loop" and count_turns(node, model) == 0
            if is_empty and (stacks := _unknown_stacks(node, model)):
                unknown = "; ".join(
                    f"{info.name} {helper.printable_type(info.type)}" for info in stacks
                )
                raise ModelError(
                    f"a Loop of no turns stacks values of unknown shapes, {unknown}: export the "
                    "model without it",
                    code="loop",
                )
            raise ModelError(
                f"a {node.op_type} has a number of turns that depends on the data: export the "
                "model with a constant number of turns, or export the body of the loop and call "
                "the library in a loop",
                code="loop",
            )


@dataclass
class _Plan:
    """Steps that a node is unrolled into.

    Attributes:
        body: Graph of one turn.
        states: Names of the body's inputs that turns pass on, with their first values.
        reads: Names of the body's inputs that are slices: the sliced value, its axis, and True if
            it is read from the end.
        n_skipped: Outputs of the body before its states.
        stacks: Axis of each stacked output, and True if it is stacked from the end.
        counter: Input of the body that counts the turns; None without one.
        condition: Input of the body that is true in every turn; None without one.
    """

    body: onnx.GraphProto
    turns: int
    states: dict[str, str]
    reads: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    n_skipped: int = 0
    stacks: list[tuple[int, bool]] = field(default_factory=list)
    counter: onnx.ValueInfoProto | None = None
    condition: onnx.ValueInfoProto | None = None

    @property
    def n_operators(self) -> int:
        """Number of operators of all turns, slices, stacks and counters included."""
        n_body = sum(1 for _ in nodes_within(self.body))
        return self.turns * (1 + n_body + len(self.reads) + len(self.stacks))


def _plan_loop(node: onnx.NodeProto, model: onnx.ModelProto) -> _Plan | None:
    body = attribute(node, "body")
    names = [info.name for info in body.input]
    initial = dict(zip(names[2:], node.input[2:], strict=True))
    turns = count_turns(node, model)
    if turns is None:
        return None
    n_stacks = len(node.output) - len(initial)
    # A stack of no turns has the shape and the type that the body declares.
    if turns < 1 and _unknown_stacks(node, model):
        return None
    return _Plan(
        body,
        turns,
        initial,
        n_skipped=1,
        stacks=[(0, False)] * n_stacks,
        counter=body.input[0],
        condition=body.input[1],
    )


def _unknown_stacks(node: onnx.NodeProto, model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return what a Loop stacks, something reads, and is declared without a shape."""
    uses, first = count_uses(model.graph), len(node.input) - 2
    stacks = zip(node.output[first:], attribute(node, "body").output[first + 1 :], strict=True)
    return [made for output, made in stacks if uses[output] and not has_fixed_shape(made)]


def _plan_scan(node: onnx.NodeProto, model: onnx.ModelProto) -> _Plan | None:
    body = attribute(node, "body")
    n_reads = int(attribute(node, "num_scan_inputs", 0))
    names = [info.name for info in body.input]
    # Before version 9 of the operators, a Scan had a batch axis and lengths.
    if len(names) != len(node.input) or not n_reads:
        return None
    n_states = len(names) - n_reads
    axes = attribute(node, "scan_input_axes", [0] * n_reads)
    backwards = attribute(node, "scan_input_directions", [0] * n_reads)
    shapes = fixed_shapes(model.graph)
    sources = node.input[n_states:]
    if any(source not in shapes for source in sources):
        return None
    reads = {
        name: (source, int(axis) % len(shapes[source]), bool(backward))
        for name, source, axis, backward in zip(
            names[n_states:], sources, axes, backwards, strict=True
        )
    }
    lengths = {shapes[source][axis] for source, axis, _ in reads.values()}
    if len(lengths) != 1 or not min(lengths):
        return None
    n_stacks = len(node.output) - n_states
    stack_axes = attribute(node, "scan_output_axes", [0] * n_stacks)
    stack_backwards = attribute(node, "scan_output_directions", [0] * n_stacks)
    return _Plan(
        body,
        lengths.pop(),
        dict(zip(names[:n_states], node.input[:n_states], strict=True)),
        reads=reads,
        stacks=[(int(a), bool(b)) for a, b in zip(stack_axes, stack_backwards, strict=True)],
    )


_PLANS = {"Loop": _plan_loop, "Scan": _plan_scan}


def _is_loop(node: onnx.NodeProto) -> bool:
    return node.op_type in _PLANS and not is_foreign(node)


def _check_size(node: onnx.NodeProto, plan: _Plan, n_operators: int) -> None:
    """Check the number of operators of all loops so far."""
    if n_operators > _MAX_OPERATORS:
        before = n_operators - plan.n_operators
        raise ModelError(
            f"a {node.op_type} of {plan.turns} turns would become {plan.n_operators} operators "
            f"beside {before} of other loops, and at most {_MAX_OPERATORS} can be unrolled: export "
            "the model for shorter inputs, or export the body of the loop and call the library in "
            "a loop",
            code="loop",
        )


def _unrolled(
    node: onnx.NodeProto, plan: _Plan, graph: onnx.GraphProto, opset: int
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that replace a loop; their constants become initialisers of the graph."""
    base = f"{next(name for name in node.output if name)}_turn"
    body, constants = _split(plan.body)
    # Names of the same constants in every turn.
    shared = inline(constants, f"{base}@")
    graph.initializer.extend(shared.initialisers)
    yield from shared.nodes
    same = dict(zip((each.name for each in constants.output), shared.outputs, strict=True))
    if plan.condition is not None:
        same[plan.condition.name] = _constant(
            graph, f"{base}@@goes_on", as_declared(plan.condition, True)
        )
    states = dict(plan.states)
    stacked: list[list[str]] = [[] for _ in plan.stacks]
    for turn in range(plan.turns):
        # Own names differ from those of the body in the character behind the number.
        prefix, own = f"{base}{turn}_", f"{base}{turn}@"
        inputs = {**same, **states}
        if plan.counter is not None:
            number = as_declared(plan.counter, turn)
            inputs[plan.counter.name] = _constant(graph, f"{own}number", number)
        for name, (source, axis, backward) in plan.reads.items():
            index = -1 - turn if backward else turn
            place = _constant(graph, f"{own}{name}_place", np.array(index))
            inputs[name] = f"{own}{name}"
            yield helper.make_node("Gather", [source, place], [inputs[name]], axis=axis)
        inlined = inline(body, prefix, inputs)
        yield from inlined.nodes
        results = inlined.outputs[plan.n_skipped :]
        states = dict(zip(plan.states, results, strict=False))
        for index, name in enumerate(results[len(states) :]):
            stacked[index].append(name)
    for name, output in zip(states.values(), node.output, strict=False):
        if output:
            yield helper.make_node("Identity", [name], [output])
    for (axis, backward), names, output in zip(
        plan.stacks, stacked, node.output[len(states) :], strict=True
    ):
        info = plan.body.output[plan.n_skipped + [*node.output].index(output)]
        if output and names:
            order = names[::-1] if backward else names
            yield from _stack(graph, order, output, axis, opset)
        # Nothing reads one of an unknown shape.
        elif output and has_fixed_shape(info):
            made = info.type.tensor_type
            shape = (0, *(dim.dim_value for dim in made.shape.dim))
            empty = np.zeros(shape, helper.tensor_dtype_to_np_dtype(made.elem_type))
            yield helper.make_node(
                "Identity", [_constant(graph, f"{output}@none", empty)], [output]
            )


def _split(body: onnx.GraphProto) -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """Return a body without its constants, and a graph of these, whose outputs they are."""
    rest = onnx.GraphProto()
    rest.CopyFrom(body)
    del rest.initializer[:], rest.node[:]
    rest.node.extend(node for node in body.node if node.op_type != "Constant")
    nodes = [node for node in body.node if node.op_type == "Constant"]
    names = [each.name for each in body.initializer]
    names += [name for node in nodes for name in node.output]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    return rest, helper.make_graph(nodes, "constants", [], outputs, body.initializer)


def _stack(
    graph: onnx.GraphProto, names: list[str], output: str, axis: int, opset: int
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that stack values along a new axis."""
    rows = [f"{output}@row{index}" for index in range(len(names))]
    axes: Mapping[str, list[int]] = {"axes": [axis]} if opset < 13 else {}
    inputs = [] if axes else [_constant(graph, f"{output}@axis", np.array([axis]))]
    for name, row in zip(names, rows, strict=True):
        yield helper.make_node("Unsqueeze", [name, *inputs], [row], **axes)
    yield helper.make_node("Concat", rows, [output], axis=axis)


def _constant(graph: onnx.GraphProto, name: str, value: Array) -> str:
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name

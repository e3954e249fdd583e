"""Refusal of models that draw random numbers, which folding would turn into constants."""

from collections.abc import Callable, Iterator, Mapping

import onnx

from tuner.errors import ModelError
from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import Array, constant_readers, nodes_within

_OPERATORS = frozenset(
    [
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    ]
)


# Domain in which folding knows no operator.
_GUARDED = "tuner.random"


def refuse_random(model: onnx.ModelProto, *, with_branches: bool = True) -> None:
    """Refuse a model whose outputs depend on random numbers.

    Args:
        with_branches: False to leave branches (If) out, of which some may never be taken.

    Raises:
        ModelError: If one does; the message has the operator and the output.
    """
    draw = next(_draws(model, with_branches=with_branches), None)
    if draw is not None:
        node, output = draw
        raise refusal(output, node.op_type, node.output[0])


def guard_random(model: onnx.ModelProto) -> None:
    """Keep folding from making constants of random numbers that a branch may bring to an output."""
    draws = [node for node, _ in _draws(model, with_branches=True)]
    for node in draws:
        node.domain = _GUARDED
        # Folding takes a node without operands for a constant.
        node.input.extend(info.name for info in model.graph.input[:1])
    if draws:
        model.opset_import.add(domain=_GUARDED, version=1)


def _draws(model: onnx.ModelProto, *, with_branches: bool) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Yield what draws random numbers, and the first output that depends on them."""
    graph = model.graph
    constants = constant_readers(graph)
    if not any(_is_random(node, constants) for node in nodes_within(graph)):
        return
    producers = {output: node for node in graph.node for output in node.output if output}
    seen: set[str] = set()
    for info in graph.output:
        pending = [info.name]
        while pending:
            name = pending.pop()
            node = producers.get(name)
            if name in seen or node is None or node.op_type in ("Shape", "Size"):
                continue
            seen.add(name)
            for each in _nodes_of(node, with_branches=with_branches):
                if _is_random(each, constants):
                    yield each, info.name
                pending += each.input


def _nodes_of(node: onnx.NodeProto, *, with_branches: bool) -> list[onnx.NodeProto]:
    """Return a node and the nodes of its subgraphs."""
    if node.op_type == "If" and not with_branches:
        return [node]
    graphs = [graph for item in node.attribute for graph in (item.g, *item.graphs)]
    return [node, *(each for graph in graphs for each in nodes_within(graph))]


def _is_random(node: onnx.NodeProto, constants: Mapping[str, Callable[[], Array]]) -> bool:
    if is_foreign(node):
        return bool(node.domain == _GUARDED)
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        is_training = constants.get(node.input[2])
        return is_training is None or bool(is_training().any())
    return node.op_type in _OPERATORS


def refusal(output: str, operator: str, value: str) -> ModelError:
    """Return the refusal of an output that depends on a value that an operator draws."""
    return ModelError(
        f"output {output!r} depends on random numbers, which {operator} draws for "
        f"{value!r}: export the model in evaluation mode, or draw the numbers outside of "
        "it and make them an input",
        code="random-operator",
    )

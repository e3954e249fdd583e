"""Refusal of models that draw random numbers, which folding would turn into constants."""

import onnx

from tuner.errors import ModelError
from tuner.networks.graph import nodes_within

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


def refuse_random(model: onnx.ModelProto) -> None:
    """Refuse a model whose outputs depend on random numbers.

    Raises:
        ModelError: If one does; the message has the operator and the output.
    """
    graph = model.graph
    if not any(_is_random(node) for node in nodes_within(graph)):
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
            within = [node, *(each for item in node.attribute for each in _nodes_of(item))]
            for each in within:
                if _is_random(each):
                    raise _refusal(each, info.name)
                pending += each.input


def _nodes_of(item: onnx.AttributeProto) -> list[onnx.NodeProto]:
    return [node for graph in (item.g, *item.graphs) for node in nodes_within(graph)]


def _is_random(node: onnx.NodeProto) -> bool:
    return node.op_type in _OPERATORS and node.domain in ("", "ai.onnx")


def _refusal(node: onnx.NodeProto, output: str) -> ModelError:
    return ModelError(
        f"output {output!r} depends on random numbers, which {node.op_type} draws for "
        f"{node.output[0]!r}: export the model in evaluation mode, or draw the numbers outside of "
        "it and make them an input",
        code="random-operator",
    )

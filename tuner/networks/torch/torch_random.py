"""Refusal of exported programs that draw random numbers, which an import would make constants."""

from collections.abc import Iterator
from typing import Any

from tuner.networks.onnx.inputs.random_draws import refusal


def refuse_random(program: Any) -> None:
    """Refuse a program of torch whose outputs depend on random numbers.

    Raises:
        ModelError: If one does; the message has the operator and the output.
    """
    draw = next(_draws(program), None)
    if draw is not None:
        node, output = draw
        raise refusal(output, str(node.target), node.name)


def is_random(node: Any) -> bool:
    """Return whether a node draws random numbers; a dropout in evaluation mode does not."""
    import torch

    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = dict(node.kwargs)
    for number, argument in enumerate(node.target._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        given.setdefault(argument.name, node.args[number] if number < len(node.args) else default)
    if any(given.get(name) is False for name in ("train", "training")):
        return False
    # Programs of modules in evaluation mode contain dropouts with rate 0.
    rates = [given[name] for name in ("dropout_p", "dropout", "p") if name in given]
    return not (rates and rates[0] == 0)


def is_mutable(target: Any) -> bool:
    """Return whether an operator writes to an operand."""
    schema = getattr(target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _draws(program: Any) -> Iterator[tuple[Any, str]]:
    """Yield what draws random numbers, and the first output that depends on them.

    Every output counts as dependent on what is written in place: a write to a view is not an
    operand of what reads the tensor later.
    """
    nodes = {node.name: node for node in program.graph.nodes}
    written = [node for node in nodes.values() if is_mutable(node.target)]
    seen: set[Any] = set()
    for output in program.graph_signature.user_outputs:
        pending = [*written, *(nodes[name] for name in [output] if name in nodes)]
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            for each in (node, *_nodes_of_branch(program.graph_module, node)):
                if is_random(each):
                    yield each, output
            pending += node.all_input_nodes


def _nodes_of_branch(root: Any, node: Any) -> list[Any]:
    """Return the nodes of a branch that a node names, and of those inside of it."""
    branch: Any = getattr(root, node.target, None) if node.op == "get_attr" else None
    if not hasattr(branch, "graph"):
        return []
    graphs = [each.graph for each in branch.modules() if hasattr(each, "graph")]
    return [each for graph in graphs for each in graph.nodes]

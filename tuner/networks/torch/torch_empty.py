"""Replacement of what programs of torch compute from no elements by its value."""

from typing import Any


def fold_empty(program: Any) -> None:
    """Make operators constants whose operands all have no elements, in place.

    Vectors without elements are left out of concatenations, which take them beside any shape.

    Torch itself computes a mean, a product or a truth of no elements.

    Args:
        program: An exported program; operators with dynamic dimensions stay.
    """
    for module in program.graph_module.modules():
        graph = getattr(module, "graph", None)
        for node in list(graph.nodes if graph else ()):
            _drop_empty(node)
            if node.op == "call_function" and (value := _of_nothing(node)) is not None:
                import torch

                node.target = torch.ops.aten.full.default
                node.args = ([*value.shape], value.reshape(-1)[0].item())
                node.kwargs = {"dtype": value.dtype}


def _drop_empty(node: Any) -> None:
    """Leave vectors without elements out of a concatenation, unless they make its type wider."""
    if getattr(node.target, "__name__", "") != "cat.default":
        return
    operands = [(each, each.meta["val"]) for each in node.args[0]]
    kept = [each for each, value in operands if value.ndim != 1 or not _is_empty(value)]
    if {each.meta["val"].dtype for each in kept} == {node.meta["val"].dtype}:
        node.args = (kept, *node.args[1:])


def _of_nothing(node: Any) -> Any:
    """Return the value of a node that depends on no element, or None.

    All elements of a value are equal; an element of a tuple is a node of its own.
    """
    import torch

    made = node.meta.get("val")
    is_element = getattr(node.target, "__name__", "") == "getitem"
    called = node.args[0] if is_element else node
    operands = [each.meta.get("val") for each in called.all_input_nodes]
    is_folded = (
        isinstance(made, torch.Tensor)
        and isinstance(called.target, torch._ops.OpOverload)
        and not called.target._schema.is_mutable
        and operands
        and all(isinstance(each, torch.Tensor) and _is_empty(each) for each in operands)
        and not _is_empty(made)
        and all(isinstance(size, int) for size in made.shape)
    )
    if not is_folded:
        return None
    args, kwargs = torch.fx.node.map_arg((called.args, called.kwargs), _empty)
    # Programs of another device name it.
    value = called.target(*args, **{k: each for k, each in kwargs.items() if k != "device"})
    value = value[node.args[1]] if is_element else value
    first = value.reshape(-1)[0]
    is_uniform = bool(((value == first) | (value.isnan() & first.isnan())).all())
    return value if is_uniform else None


def _is_empty(value: Any) -> bool:
    """Return whether a tensor certainly has no elements."""
    return any(isinstance(size, int) and size == 0 for size in value.shape)


def _empty(node: Any) -> Any:
    import torch

    value = node.meta["val"]
    return torch.empty([int(size) for size in value.shape], dtype=value.dtype)

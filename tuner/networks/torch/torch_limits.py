"""Limits of the inputs of an exported torch program, which torch checks when it runs one."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from tuner.library.limits import InputLimit
from tuner.networks.onnx.graph import Array
from tuner.networks.onnx.inputs.value_limits import (
    MAX_SIZE,
    OTHER,
    Elements,
    Use,
    check_constant,
    merged,
)

# Operators that only move the elements of their first operand, or of a list of tensors.
_MOVES = frozenset(
    {
        *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze"),
        *("expand", "slice", "select", "clone", "alias", "contiguous", "detach", "detach_"),
        *("permute", "transpose", "t", "cat", "stack", "narrow", "repeat", "flip", "unbind"),
        *("split", "chunk", "split_with_sizes", "getitem", "lift_fresh_copy"),
    }
)
_COPIES = frozenset({"alias", "clone", "detach", "detach_", "lift_fresh_copy"})
_CASTS = frozenset({"to", "_to_copy"})
# Operators whose third operand indexes the axis that the second one names.
_ALONG_AXIS = frozenset(
    {
        *("gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"),
        *("scatter", "scatter_add", "scatter_reduce"),
    }
)
_AT_POSITIONS = frozenset({"take", "put"})
_AT_INDICES = frozenset({"index", "index_put", "_unsafe_index", "_unsafe_index_put"})
# Operators that count negative indices from the end; the others refuse them.
_WRAPPING = _AT_POSITIONS | _AT_INDICES | {"index_fill"}
_DIVISIONS = frozenset({"div", "floor_divide", "fmod", "remainder"})


def find_limits(program: Any) -> tuple[InputLimit, ...]:
    """Return the limits of inputs that a program takes as indices and divisors.

    Args:
        program: Exported program with fixed shapes.

    Raises:
        ModelError: If a constant is outside of an axis, or a constant divisor of whole numbers 0.
    """
    by_name = {node.name: node for node in program.graph.nodes}
    inputs = [by_name[name] for name in program.graph_signature.user_inputs if name in by_name]
    shapes = {node.name: tuple(node.meta["val"].shape) for node in inputs if _is_integer(node)}
    elements = Elements(shapes)
    moved: dict[fx.Node, Any] = {by_name[name]: elements.of(name) for name in shapes}
    constants = _constants(program)
    limits: list[InputLimit] = []
    for node in program.graph.nodes:
        for operand, use in _uses(node):
            is_number = not isinstance(operand, fx.Node)
            values = np.asarray(operand) if is_number else constants.get(operand.name)
            if values is not None:
                check_constant(use, values)
            elif isinstance(moved.get(operand), np.ndarray):
                limits += elements.limits(use, moved[operand])
        if node.op != "call_function":
            continue
        moved[node] = _move(node, moved)
        source = constants.get(getattr(node.args[0], "name", "")) if node.args else None
        if source is not None and _name(node) in _COPIES:
            constants[node.name] = source
    return merged(limits)


def _uses(node: fx.Node) -> Iterator[tuple[Any, Use]]:
    """Yield the operands that a node takes as indices or divisors: nodes, and whole numbers."""
    name, args = _name(node).removesuffix("_"), node.args
    if node.op != "call_function":
        return
    if name in _DIVISIONS and _is_integer(node):
        if _is_integer(args[1]) or isinstance(args[1], int):
            yield args[1], Use(node.name)
        return
    if not args or not isinstance(args[0], fx.Node):
        return
    shape = tuple(getattr(args[0].meta.get("val"), "shape", ()))
    uses: list[tuple[Any, int]] = []
    if name in ("embedding", "embedding_bag", "_embedding_bag") and shape:
        uses = [(args[1], shape[0])]
    elif name in _ALONG_AXIS:
        uses = [(args[2], shape[args[1]] if shape else 1)]
    elif name in _AT_POSITIONS:
        uses = [(args[1], args[0].meta["val"].numel())]
    elif name == "one_hot" and len(args) > 1 and args[1] != -1:
        uses = [(args[0], args[1])]
    elif name in _AT_INDICES and not any(map(_is_mask, args[1])):
        uses = [*zip(args[1], shape, strict=False)]
    for operand, size in uses:
        if _is_integer(operand):
            yield operand, Use(node.name, -int(size) if name in _WRAPPING else 0, int(size) - 1)


def _move(node: fx.Node, moved: Mapping[fx.Node, Any]) -> Any:
    """Return the names of the elements of a node's result; None if all are computed or unknown."""
    name = _name(node)
    first = node.args[0] if node.args else None
    sources = first if isinstance(first, list | tuple) else [first]
    if all(moved.get(each) is None for each in sources if isinstance(each, fx.Node)):
        return None
    if name in _CASTS:
        return moved[first] if isinstance(first, fx.Node) and _is_integer(node) else None
    others = (*node.args[1:], *node.kwargs.values())
    if name not in _MOVES or any(isinstance(each, fx.Node | torch.dtype) for each in others):
        return None
    tensors = [_tensor(each, moved) for each in sources]
    if any(isinstance(each, torch.Tensor) and each.numel() > MAX_SIZE for each in tensors):
        return None
    operand = tensors if isinstance(first, list | tuple) else tensors[0]
    assert callable(node.target)
    # Names need not have the strides of the elements, by which torch chooses what it can view.
    with contextlib.suppress(Exception):
        result = node.target(operand, *node.args[1:], **node.kwargs)
        is_single = isinstance(result, torch.Tensor)
        return _names(result) if is_single else [*map(_names, result)]
    return None


def _names(moved: torch.Tensor) -> Array:
    names: Array = moved.contiguous().numpy()
    return names


def _tensor(node: Any, moved: Mapping[fx.Node, Any]) -> Any:
    names = moved.get(node)
    if names is None:
        return torch.full(tuple(node.meta["val"].shape), OTHER)
    if isinstance(names, list):
        return [torch.from_numpy(each) for each in names]
    return torch.from_numpy(names)


def _constants(program: Any) -> dict[str, Array]:
    """Return constant whole numbers by the name of their node."""
    signature = program.graph_signature
    places = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    tensors = {**program.state_dict, **program.constants}
    return {
        name: tensors[place].detach().cpu().numpy()
        for name, place in places.items()
        if isinstance(tensors.get(place), torch.Tensor) and _is_whole(tensors[place].dtype)
    }


def _is_mask(index: Any) -> bool:
    return isinstance(index, fx.Node) and index.meta["val"].dtype in (torch.bool, torch.uint8)


def _is_integer(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and _is_whole(value.dtype)


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _name(node: fx.Node) -> str:
    """Return the name of an operator without its overload."""
    name = getattr(node.target, "__name__", str(node.target))
    return str(name).removeprefix("aten.").partition(".")[0]

"""Plausible values of the inputs of an exported torch program, and its precision."""

from typing import Any

import numpy as np

from tuner.networks.base import PRECISIONS, ModelFacts
from tuner.networks.onnx.inputs.input_values import Uses, coarsest, range_of

_VIEWS = frozenset(
    [
        "view",
        "reshape",
        "_unsafe_view",
        "unsqueeze",
        "squeeze",
        "expand",
        "slice",
        "select",
        "clone",
        "alias",
        "contiguous",
        "permute",
        "transpose",
        "to",
        "_to_copy",
    ]
)
_MAX_DEPTH = 100


def describe_pt2(path: str) -> ModelFacts:
    """Find the values that each input may take, as :func:`describe_onnx` does for ONNX.

    Only uses as indices are found: of ``embedding``, ``index_select`` and ``gather``.
    """
    from tuner.networks.torch.programs import load_program

    program = load_program(path)
    nodes = {node.name: node for node in program.graph.nodes}
    ranges, dtypes = {}, {str(tensor.dtype) for tensor in program.state_dict.values()}
    for name in program.graph_signature.user_inputs:
        node = nodes[name]
        dtype = str(node.meta["val"].dtype)
        dtypes.add(dtype)
        if not node.meta["val"].dtype.is_floating_point:
            uses = Uses(is_number=True)
            _follow(node, uses, 0)
            ranges[name] = range_of(np.dtype(dtype.removeprefix("torch.")), uses)
    names = {dtype.removeprefix("torch.") for dtype in dtypes}
    return ModelFacts(ranges, coarsest(names & set(PRECISIONS)))


def _follow(node: Any, uses: Uses, depth: int) -> None:
    for user in node.users if depth < _MAX_DEPTH else ():
        name = str(user.target).removeprefix("aten.").partition(".")[0]
        if name == "embedding" and user.args[1] is node:
            uses.rows.append(_size(user.args[0], 0))
        elif name in {"index_select", "gather"} and user.args[2] is node:
            uses.rows.append(_size(user.args[0], user.args[1]))
        elif name in _VIEWS and user.args[0] is node:
            _follow(user, uses, depth + 1)


def _size(node: Any, axis: int) -> int:
    """Return a size; 1, whose only index is valid for all sizes, if it is dynamic."""
    size = node.meta["val"].shape[axis]
    return size if isinstance(size, int) else 1

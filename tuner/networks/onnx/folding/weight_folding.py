"""Folding of operators that move the elements of weights, in numpy."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper

from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import Array, attribute, constant_readers, drop_unused_constants

Folder = Callable[[onnx.NodeProto, Sequence[Array]], Array]

_FOLDERS: dict[str, Folder] = {
    "Gather": lambda node, arrays: np.take(arrays[0], arrays[1], attribute(node, "axis", 0)),
    "Transpose": lambda node, arrays: np.transpose(arrays[0], attribute(node, "perm")),
}


def fold_weights(graph: onnx.GraphProto) -> int:
    """Replace each Transpose and Gather of constants by its result, in place; return the number."""
    if not any(node.op_type in _FOLDERS for node in graph.node):
        return 0
    constants = constant_readers(graph)
    outputs = {info.name for info in graph.output}
    kept = []
    for node in graph.node:
        array = None
        if not outputs & {*node.output} and all(name in constants for name in node.input):
            array = _fold(node, [constants[name] for name in node.input])
        if array is None:
            kept.append(node)
            continue
        tensor = numpy_helper.from_array(np.asarray(array, order="C"), node.output[0])
        graph.initializer.append(tensor)
        constants[tensor.name] = partial(np.asarray, array)
    n_folded = len(graph.node) - len(kept)
    if n_folded:
        del graph.node[:]
        graph.node.extend(kept)
        drop_unused_constants(graph)
    return n_folded


def _fold(node: onnx.NodeProto, readers: Sequence[Callable[[], Array]]) -> Array | None:
    """Return the result of a node; None if it is of another operator, or an index is wrong."""
    if node.op_type not in _FOLDERS or is_foreign(node):
        return None
    try:
        return _FOLDERS[node.op_type](node, [read() for read in readers])
    except (IndexError, TypeError, ValueError):
        return None

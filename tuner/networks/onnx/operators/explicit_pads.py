"""Widths of padding in place of rules for them: ``auto_pad``, ``output_shape`` and ``ceil_mode``.

Importers compute some of these widths wrongly, and pad the data in front of a convolution where
the convolution itself could.
"""

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper

from tuner.networks.onnx.node_builder import Replacement


def pad_explicitly(b: Replacement) -> bool:
    """Give a convolution or a pool the widths of its automatic padding; return False without it."""
    mode = _mode_of(b)
    if mode == "NOTSET":
        return False
    sizes = b.shape(b.input(0))[2:]
    pads = [0] * 2 * len(sizes)
    if mode.startswith("SAME"):
        windows = zip(sizes, _strides_of(b, len(sizes)), _extents_of(b, len(sizes)), strict=True)
        # As many outputs as there are strides in the input; the last one may be cut.
        totals = [
            max((-(-size // stride) - 1) * stride + extent - size, 0)
            for size, stride, extent in windows
        ]
        pads = _split(totals, mode)
    # The number of outputs is exact, so that rounding up would add one beyond the input.
    rounding = {} if mode == "VALID" or not b.attribute("ceil_mode", 0) else {"ceil_mode": None}
    b.nodes.append(_with_attributes(b.node, auto_pad=None, pads=pads, **rounding))
    return True


def pad_transposed(b: Replacement) -> bool:
    """Give a transposed convolution the widths of its padding; return False if it has them.

    Raises:
        ValueError: If it cannot have as many outputs as it should.
    """
    mode, target = _mode_of(b), b.attribute("output_shape")
    if mode == "NOTSET" and not target:
        return False
    sizes = b.shape(b.input(0))[2:]
    strides, extents = _strides_of(b, len(sizes)), _extents_of(b, len(sizes))
    rest = b.attribute("output_padding") or [0] * len(sizes)
    lengths = [
        stride * (size - 1) + extent + more
        for stride, size, extent, more in zip(strides, sizes, extents, rest, strict=True)
    ]
    # Without a shape, each input is as many outputs as the stride says.
    targets = target or [stride * size for stride, size in zip(strides, sizes, strict=True)]
    totals = [length - each for length, each in zip(lengths, targets, strict=True)]
    if target:
        # Positions beyond the last window are outputs as well, up to those of another input.
        rest = [more + max(-n, 0) for more, n in zip(rest, totals, strict=True)]
        if any(more >= stride for more, stride in zip(rest, strides, strict=True) if more):
            raise ValueError(f"output_shape {list(target)} is larger than that of the next input")
    is_valid = mode == "VALID" and not target
    pads = [0] * 2 * len(sizes) if is_valid else _split([max(n, 0) for n in totals], mode)
    changed = {"auto_pad": None, "output_shape": None, "pads": pads, "output_padding": rest}
    b.nodes.append(_with_attributes(b.node, **changed))
    return True


def pad_pool(b: Replacement) -> bool:
    """Give a pool the widths of its padding; return False if it has them.

    A pool that rounds up leaves out a window that would begin behind the input, which the
    inference of shapes does not know. Importers also multiply the average of a part of a window
    of LpPool by the number of elements of a whole one.
    """
    if pad_explicitly(b):
        return True
    if not b.attribute("ceil_mode", 0):
        return False
    sizes = b.shape(b.input(0))[2:]
    rank = len(sizes)
    given = list(b.attribute("pads") or [0] * 2 * rank)
    pads, is_known = [*given], True
    windows = zip(sizes, _strides_of(b, rank), _extents_of(b, rank), strict=True)
    for axis, (size, stride, extent) in enumerate(windows):
        before, after = given[axis], given[rank + axis]
        start = -(-(before + size + after - extent) // stride) * stride
        if start >= before + size:
            start, is_known = start - stride, False
        pads[rank + axis] = max(after, start + extent - before - size)
    counts_padding = b.node.op_type == "AveragePool" and b.attribute("count_include_pad", 0)
    if b.node.op_type != "LpPool" and (is_known or (counts_padding and pads != given)):
        return False
    b.nodes.append(_with_attributes(b.node, ceil_mode=None, pads=pads))
    return True


def _mode_of(b: Replacement) -> str:
    return str(b.attribute("auto_pad", b"NOTSET").decode())


def _strides_of(b: Replacement, rank: int) -> list[int]:
    return list(b.attribute("strides") or [1] * rank)


def _extents_of(b: Replacement, rank: int) -> list[int]:
    """Return the number of elements from the first to the last that a window reads, by axis."""
    kernel = b.attribute("kernel_shape") or b.shape(b.input(1))[2:]
    dilations = b.attribute("dilations") or [1] * rank
    return [(n - 1) * dilation + 1 for n, dilation in zip(kernel, dilations, strict=True)]


def _split(totals: Sequence[int], mode: str) -> list[int]:
    """Split the padding of each axis; the odd element is at the end if the mode says upper."""
    before = [n // 2 if mode == "SAME_UPPER" else n - n // 2 for n in totals]
    return [*before, *(n - first for n, first in zip(totals, before, strict=True))]


def _with_attributes(node: onnx.NodeProto, **values: Any) -> onnx.NodeProto:
    """Return a copy of a node with other values of some attributes; None removes one."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    kept = [item for item in node.attribute if item.name not in values]
    del copy.attribute[:]
    copy.attribute.extend(kept)
    given = {name: value for name, value in values.items() if value is not None}
    copy.attribute.extend(helper.make_attribute(name, value) for name, value in given.items())
    return copy

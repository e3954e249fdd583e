"""Broadcasting as before version 7 of the operators, by the attribute ``axis``.

The second operand lay along the axes of the first from ``axis`` on; since version 7, operands are
aligned at their last axes, which is all that importers know.
"""

from collections.abc import Callable

from tuner.networks.onnx.node_builder import Replacement

_ALIGNED_AT_THE_END = 7


def align_operand(b: Replacement) -> bool:
    """Append axes to the second operand of a node; return False if it is aligned without."""
    axis = b.attribute("axis")
    if b.opset >= _ALIGNED_AT_THE_END or axis is None or not b.attribute("broadcast", 0):
        return False
    first, second = b.shape(b.input(0)), b.shape(b.input(1))
    n_behind = len(first) - int(axis) % len(first) - len(second)
    if n_behind <= 0:
        return False
    axes = [len(second) + index for index in range(n_behind)]
    aligned = b.add("Unsqueeze", b.input(1), axes=axes)
    b.add(b.node.op_type, b.input(0), aligned, output=b.node.output[0], broadcast=1)
    return True


#: Replacements by the names of the operators that broadcast so.
BROADCASTS: dict[str, Callable[[Replacement], bool]] = dict.fromkeys(
    ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"),
    align_operand,
)

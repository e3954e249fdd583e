"""Programs of torch in float64, operator by operator."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from tuner.library.arrays import Array
from tuner.peers.rounding import Rounding, widened

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class _Wide(Interpreter):  # type: ignore[misc]  # untyped package
    """Interpreter whose operators get and return float64 instead of narrower floats.

    Args:
        module: The program.
        rounding: Rounds the results of operators; None for exact ones.
    """

    def __init__(self, module: torch.fx.GraphModule, rounding: Rounding | None) -> None:
        super().__init__(module)
        self._rounding = rounding

    def run_node(self, n: Node) -> Any:
        """Run a node of the graph."""
        if n.op != "call_function":
            return pytree.tree_map(_widened, super().run_node(n))
        operands = pytree.tree_map(_wide_type, self.fetch_args_kwargs_from_env(n))
        if self._rounding is None:
            return self._call(n, operands)
        # An operator may write to its operands.
        moved = self._call(n, pytree.tree_map(self._move, operands))
        return pytree.tree_map(self._round, self._call(n, operands), moved)

    def _call(self, n: Node, operands: Any) -> Any:
        arguments, keywords = operands
        return pytree.tree_map(_widened, self.call_function(n.target, arguments, keywords))

    def _move(self, operand: Any) -> Any:
        if not isinstance(operand, torch.Tensor):
            return operand
        assert self._rounding is not None
        return torch.from_numpy(self._rounding.move(operand.numpy(force=True)).copy())

    def _round(self, exact: Any, moved: Any) -> Any:
        if not isinstance(exact, torch.Tensor):
            return exact
        assert self._rounding is not None
        arrays = exact.numpy(force=True), moved.numpy(force=True)
        return torch.from_numpy(self._rounding.round(*arrays).copy())


def run(path: str, arrays: Mapping[str, Array], rounding: Rounding | None) -> list[Array]:
    """Return the outputs of a program in float64, in order.

    Args:
        path: Path of the program.
        arrays: Inputs by name, in order.
        rounding: Rounds the results of operators; None for exact ones.
    """
    module = torch.export.load(path).module()
    arguments = [torch.from_numpy(widened(array)) for array in arrays.values()]
    with torch.inference_mode():
        returned = _Wide(module, rounding).run(*arguments)
    tensors = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [tensor.numpy(force=True) for tensor in tensors]


def _widened(value: Any) -> Any:
    is_narrow = isinstance(value, torch.Tensor) and value.dtype in _NARROW
    return value.double() if is_narrow else value


def _wide_type(value: Any) -> Any:
    return torch.float64 if value in _NARROW and isinstance(value, torch.dtype) else value

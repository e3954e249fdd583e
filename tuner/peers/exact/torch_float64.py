"""Programs of torch in float64, operator by operator."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from tuner.library.arrays import Array
from tuner.networks.torch.programs import load_program
from tuner.peers.exact.rounding import Rounding, widened

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class _Ordered(Interpreter):  # type: ignore[misc]  # untyped package
    """Interpreter that leaves equal elements in their order where torch may sort them in any."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator."""
        return super().call_function(_IN_ORDER.get(target, target), args, kwargs)


class _Wide(_Ordered):
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
        arrays: Inputs by name, in order.
        rounding: Rounds the results of operators; None for exact ones.
    """
    tensors = [torch.from_numpy(widened(array)) for array in arrays.values()]
    return compute_wide(load_program(path).module(), tensors, rounding)


def compute(module: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> list[Array]:
    """Return the outputs of a program in its own types, float32 for bfloat16.

    Args:
        tensors: Its inputs, which stay as they are.
    """
    return _run(_Ordered(module), tensors)


def compute_wide(
    module: torch.fx.GraphModule, tensors: Sequence[torch.Tensor], rounding: Rounding | None
) -> list[Array]:
    """Return the outputs of a program in float64.

    Args:
        tensors: Its inputs, which stay as they are.
        rounding: Rounds the results of operators; None for exact ones.
    """
    return _run(_Wide(module, rounding), [*map(_widened, tensors)])


def _run(interpreter: Interpreter, tensors: Sequence[torch.Tensor]) -> list[Array]:
    with torch.inference_mode():
        # A program may write to its inputs.
        copies = [tensor.clone() for tensor in tensors]
        returned = interpreter.run(*copies, enable_io_processing=False)
    values = pytree.tree_leaves(returned)
    return [
        (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
        for value in values
    ]


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def _topk(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, *_: Any) -> Any:
    ordered = _sort(x, dim, largest)
    return tuple(each.narrow(dim, 0, k) if each.dim() else each for each in ordered)


def _argsort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    return torch.argsort(x, dim=dim, descending=descending, stable=True)


_ATEN = torch.ops.aten
_IN_ORDER: dict[Any, Any] = {
    _ATEN.argsort.default: _argsort,
    _ATEN.sort.default: _sort,
    _ATEN.sort.stable: _sort,
    _ATEN.topk.default: _topk,
}


def _widened(value: Any) -> Any:
    is_narrow = isinstance(value, torch.Tensor) and value.dtype in _NARROW
    return value.double() if is_narrow else value


def _wide_type(value: Any) -> Any:
    return torch.float64 if value in _NARROW and isinstance(value, torch.dtype) else value

"""Signatures: what of a call's arguments decides which library serves it."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree as pytree

_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)
# Vector loads of a kernel may want the widest vector's alignment; torch's own allocations have it.
_ALIGNED = 63


@dataclass(frozen=True)
class Signature:
    """The arguments of a call but for the values of its tensors.

    Attributes:
        leaves: The arguments, flat; of a tensor, an empty one like it.
        structure: How they were nested.
    """

    leaves: tuple[Any, ...]
    structure: Any

    @cached_property
    def key(self) -> Hashable:
        """Equal for calls that one library serves."""
        if self.is_plain:
            return tuple(part for leaf in self.leaves for part in (leaf.shape, leaf.dtype))
        return (self.structure, *(_leaf_key(leaf) for leaf in self.leaves))

    @cached_property
    def is_plain(self) -> bool:
        """Whether the arguments are tensors by position, and nothing else."""
        positional, named = pytree.tree_unflatten(list(self.leaves), self.structure)
        return not named and all(isinstance(each, torch.Tensor) for each in positional)

    def fill(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments with these tensors in them."""
        left = iter(tensors)
        filled = [next(left) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, named = pytree.tree_unflatten(filled, self.structure)
        return args, named

    def examples(self) -> tuple[Any, ...]:
        """Return tensors of zeros, no two of which are one: a trace must not find them equal."""
        return tuple(
            torch.zeros(leaf.shape, dtype=leaf.dtype)
            for leaf in self.leaves
            if isinstance(leaf, torch.Tensor)
        )


def split(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Signature, list[Any]]:
    """Return the signature of a call, and its tensors.

    Raises:
        TypeError: If an argument is neither a tensor, a plain value, nor made of such, or there
            is no tensor.
    """
    leaves, structure = pytree.tree_flatten((args, named))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise TypeError("a jitted function is to be called with one tensor at least")
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            _check_kind(leaf)
        elif not isinstance(leaf, _CONSTANTS):
            raise TypeError(
                f"arguments are to be tensors, numbers, strings and None, in tuples, lists and "
                f"dictionaries; got {type(leaf).__name__}"
            )
    kept = tuple(
        torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    )
    return Signature(kept, structure), tensors


def ready(tensor: Any) -> Any:
    """Return what a library may be given for a tensor: its values, on the CPU, side by side.

    Raises:
        RuntimeError: If it is not on the CPU, or a gradient would be lost.
    """
    if not tensor.is_cpu:
        raise RuntimeError(f"a jitted function takes CPU tensors, not {tensor.device}")
    if tensor.requires_grad:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a jitted function computes no gradients, and an argument requires one: call it "
                "under torch.no_grad(), or with argument.detach()"
            )
        tensor = tensor.detach()
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.data_ptr() & _ALIGNED:
        return tensor.resolve_neg().clone(memory_format=torch.contiguous_format)
    return tensor


def _check_kind(tensor: Any) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"a jitted function takes plain tensors, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError("a jitted function takes dense tensors, neither sparse nor quantized ones")


def _leaf_key(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.dtype)
    # 1, 1.0 and True are equal, and not the same.
    return (type(leaf), leaf)

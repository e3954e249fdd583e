"""Signatures of calls: the properties of arguments that choose a library."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree as pytree

_CONSTANT_TYPES = (bool, int, float, str, type(None), torch.dtype, torch.device)
# Vector loads of a kernel may need the alignment of the widest vector, which torch allocates with.
_ALIGNMENT_MASK = 63


@dataclass(frozen=True)
class Signature:
    """The arguments of a call without the values of its tensors.

    Attributes:
        leaves: The arguments, flat, with an empty tensor in place of each tensor.
        structure: Nesting of the arguments, as pytree describes it.
        device: Device of all tensors.
        on_gpu: True if it is a GPU.
    """

    leaves: tuple[Any, ...]
    structure: Any
    device: Any
    on_gpu: bool = False

    @cached_property
    def key(self) -> Hashable:
        """A key that is equal for calls that one library serves."""
        if self.is_plain:
            is_cpu = not self.on_gpu
            return tuple(part for leaf in self.leaves for part in (leaf.shape, leaf.dtype, is_cpu))
        return (self.structure, self.on_gpu, *(_leaf_key(leaf) for leaf in self.leaves))

    @cached_property
    def is_plain(self) -> bool:
        """True if all arguments are positional tensors."""
        positional, named = pytree.tree_unflatten(list(self.leaves), self.structure)
        return not named and all(isinstance(argument, torch.Tensor) for argument in positional)

    def fill(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with these tensors in place of the empty ones."""
        left = iter(tensors)
        filled = [next(left) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, named = pytree.tree_unflatten(filled, self.structure)
        return args, named

    def examples(self) -> tuple[Any, ...]:
        """Return distinct tensors of zeros: a trace must not take two inputs for one."""
        return tuple(
            torch.zeros(leaf.shape, dtype=leaf.dtype, device=self.device)
            for leaf in self.leaves
            if isinstance(leaf, torch.Tensor)
        )


def split_arguments(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Signature, list[Any]]:
    """Return the signature of a call, and its tensors.

    Raises:
        TypeError: If an argument is not a tensor, a plain value, or a container of such, if there
            is no tensor, or if they are on several devices.
    """
    leaves, structure = pytree.tree_flatten((args, named))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise TypeError("a jitted function must be called with at least one tensor")
    devices = {tensor.device: tensor for tensor in tensors}
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        raise TypeError(f"the arguments of a jitted function must be on one device, not on {names}")
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            _check_kind(leaf)
        elif not isinstance(leaf, _CONSTANT_TYPES):
            raise TypeError(
                f"arguments must be tensors, numbers, strings and None, in tuples, lists and "
                f"dictionaries; got {type(leaf).__name__}"
            )
    kept = tuple(
        torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    )
    return Signature(kept, structure, tensors[0].device, is_on_gpu(tensors[0])), tensors


def is_on_gpu(tensor: Any) -> bool:
    """Return True for a tensor of CUDA, False for one of the CPU.

    Raises:
        RuntimeError: If it is on another device.
    """
    if tensor.is_cuda:
        return True
    if not tensor.is_cpu:
        raise RuntimeError(
            f"a jitted function takes tensors of the CPU or CUDA, not {tensor.device}"
        )
    return False


def prepare(tensor: Any) -> Any:
    """Return a tensor that a library can take: without a gradient, contiguous and aligned.

    Raises:
        RuntimeError: If a gradient would be lost.
    """
    if tensor.requires_grad:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a jitted function computes no gradients, and an argument requires one: call it "
                "under torch.no_grad(), or with argument.detach()"
            )
        tensor = tensor.detach()
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.data_ptr() & _ALIGNMENT_MASK:
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
    # The type tells 1, 1.0 and True apart, which are equal.
    return (type(leaf), leaf)

"""Memory of the programs of a library for a GPU, which they take instead of allocating it.

A program that is captured as a graph reads and writes the same addresses in every replay, so that
no pool may give its memory to anybody else. Its function takes, after the weights, memory for the
outputs that it writes, then the blocks of the workspace, which all programs of a library share.

Every tensor begins where its block does: TVM keeps the offset of a tensor in a block beside its
address, and kernels read the address alone.

Kernels that need no results of each other may run beside each other (decision 0119). So a tensor
takes the block of another one only if its kernel needs, directly or not, results of all kernels
that use the other. TVM's own plan is for kernels one after the other.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.op.vm import alloc_storage

from tuner.errors import WorkError
from tuner.library.manifest import BEGIN_CALL, WORKSPACE, ProgramMemory

_ALLOC_STORAGE, _ALLOC_TENSOR = "relax.vm.alloc_storage", "relax.vm.alloc_tensor"
_KILL, _RESHAPE = "relax.vm.kill_object", "vm.builtin.reshape"
# They read shapes, not elements.
_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")


def take_memory(
    module: tvm.IRModule, counting: Mapping[str, str]
) -> tuple[tvm.IRModule, dict[str, ProgramMemory]]:
    """Make the programs of a lowered module take their memory.

    Args:
        counting: Kernel of each function whose kernel has counters, by name of the function.

    Returns:
        The module, with a function that allocates the workspace, and the memory by program.
    """
    changed = tvm.IRModule(module.functions, attrs=module.attrs)
    kernels = {
        variable.name_hint
        for variable, function in module.functions_items()
        if not isinstance(function, relax.Function)
    }
    programs = {
        variable: _Program(function, kernels, counting)
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
    }
    sizes = [sorted(program.sizes, reverse=True) for program in programs.values()]
    largest = [max(column) for column in itertools.zip_longest(*sizes, fillvalue=0)]
    memories: dict[str, ProgramMemory] = {}
    for variable, program in programs.items():
        changed[variable], memories[str(variable.name_hint)] = program.rewritten(len(largest))
    changed[tvm.ir.GlobalVar(WORKSPACE)] = _allocator(largest)
    return changed, memories


def workspace_sizes(module: tvm.IRModule) -> list[int]:
    """Return the bytes of the blocks of the workspace of a module, in order."""
    storages = module[WORKSPACE].body.blocks[0].bindings
    return [int(each.value.args[0].values[0]) for each in storages]


class _Block:
    """Memory of tensors that are never there at once.

    Attributes:
        users: Set of bits of the calls that use its last tensor.
    """

    def __init__(self, n_bytes: int, users: int) -> None:
        self.n_bytes = n_bytes
        self.users = users


@dataclass
class _Program:
    """A function whose memory is planned.

    Attributes:
        function: The function, as TVM planned it.
        kernels: Names of the functions that launch kernels.
        counting: Kernel of each function whose kernel has counters.
    """

    function: relax.Function
    kernels: set[str]
    counting: Mapping[str, str]

    def __post_init__(self) -> None:
        blocks = self.function.body.blocks
        self._bindings = [binding for block in blocks for binding in block.bindings]
        self._values = {binding.var: binding.value for binding in self._bindings}
        self._numbers: dict[relax.Var, int] = {}
        self._order_calls()
        self._place_tensors()

    def _order_calls(self) -> None:
        """Find which calls each call needs: directly, and at all, as a set of bits."""
        self._needed: list[set[int]] = []
        self._before: list[int] = []
        # Bits of the calls that use a tensor, whose first one writes it.
        self._users: dict[relax.Var, int] = {}
        writers: dict[relax.Var, int] = {}
        counted: dict[str, int] = {}
        barrier: int | None = None
        for binding in self._bindings:
            if not self._uses_elements(binding.value):
                continue
            number = len(self._needed)
            self._numbers[binding.var] = number
            roots = {self._root(arg) for arg in binding.value.args} - {None}
            needed = {writers[root] for root in roots if root in writers}
            name = getattr(binding.value.op, "name_hint", "")
            is_plain = name in self.kernels and roots - writers.keys()
            if not is_plain:  # it may write what others have written
                needed = set(range(number))
                barrier = number
            elif barrier is not None:
                needed.add(barrier)
            if name in self.counting:
                kernel = self.counting[name]
                needed |= {counted[kernel]} if kernel in counted else set()
                counted[kernel] = number
            before = 0
            for call in needed:
                before |= self._before[call] | 1 << call
            indirect = 0
            for call in needed:
                indirect |= self._before[call]
            self._needed.append({call for call in needed if not indirect >> call & 1})
            self._before.append(before)
            for root in roots:
                writers.setdefault(root, number)
                self._users[root] = self._users.get(root, 0) | 1 << number

    def _uses_elements(self, value: Any) -> bool:
        if not isinstance(value, relax.Call) or any(_calls(value, name) for name in _CHECKS):
            return False
        if isinstance(value.op, tvm.ir.Op) or _calls(value, _RESHAPE):
            return False
        return any(isinstance(arg, relax.Var) for arg in value.args)

    def _place_tensors(self) -> None:
        """Give each tensor between the kernels a block."""
        self._outputs: dict[relax.Var, int] = {}
        for number, leaf in enumerate(self._leaves()):
            root = self._root(leaf)
            if root is not None:
                self._outputs.setdefault(root, number)
        blocks: list[_Block] = []
        self._places: dict[relax.Var, _Block] = {}
        for variable, value in self._values.items():
            if _calls(value, _ALLOC_TENSOR) and variable not in self._outputs:
                place = self._place(variable, blocks)
                place.users = self._users.get(variable, 0)
                self._places[variable] = place
        self._blocks = sorted(blocks, key=lambda block: block.n_bytes, reverse=True)

    def _place(self, variable: relax.Var, blocks: list[_Block]) -> _Block:
        """Return the smallest free block that fits, the largest free one, or a new one."""
        n_bytes, users = _n_bytes(variable.ty), self._users.get(variable, 0)
        first = (users & -users).bit_length() - 1
        before = self._before[first] if users else 0
        free = [block for block in blocks if not block.users & ~before]
        if not free:
            blocks.append(_Block(n_bytes, 0))
            return blocks[-1]
        fitting = [block for block in free if block.n_bytes >= n_bytes]
        if fitting:
            return min(fitting, key=lambda block: block.n_bytes)
        block = max(free, key=lambda block: block.n_bytes)
        block.n_bytes = n_bytes
        return block

    @property
    def sizes(self) -> list[int]:
        """Bytes of the blocks between the kernels."""
        return [block.n_bytes for block in self._blocks]

    @property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """Calls that each call needs; empty if each needs the one before it."""
        order = [tuple(sorted(needed)) for needed in self._needed]
        chain = [() if not number else (number - 1,) for number in range(len(order))]
        return () if order == chain else tuple(order)

    def rewritten(self, n_blocks: int) -> tuple[relax.Function, ProgramMemory]:
        """Return the function that takes its memory; the workspace has blocks, the largest first.

        Raises:
            WorkError: If TVM planned tensors that begin inside of a storage.
        """
        returned, after = self._leaves(), self.after
        outputs = {
            root: relax.Var(f"output_{number}", returned[number].ty)
            for root, number in self._outputs.items()
        }
        blocks = [relax.Var(f"block_{number}", relax.AnyType()) for number in range(n_blocks)]
        places = dict(zip(map(id, self._blocks), blocks, strict=False))
        bindings = []
        for binding in self._bindings:
            variable, value = binding.var, binding.value
            if _calls(value, _ALLOC_STORAGE):
                continue
            if _calls(value, _KILL) and _calls(self._values.get(value.args[0]), _ALLOC_STORAGE):
                continue
            if variable in outputs:
                value = _reshaped(outputs[variable], variable)
            elif _calls(value, _ALLOC_TENSOR):
                _, offset, *rest = value.args
                if int(offset):
                    raise WorkError("a tensor begins inside of a block of memory")
                block = places[id(self._places[variable])]
                value = relax.Call(value.op, [block, offset, *rest], value.attrs)
            if after and variable in self._numbers:
                bindings.append(_begin(self._numbers[variable]))
            bindings.append(relax.VarBinding(variable, value))
        body = relax.SeqExpr([relax.BindingBlock(bindings)], self.function.body.body)
        params = [*self.function.params, *outputs.values(), *blocks]
        attrs = self.function.attrs
        function = relax.Function(params, body, self.function.ret_ty, False, attrs)
        written = tuple(self._outputs.values())
        return function, ProgramMemory(written, after)

    def _leaves(self) -> list[Any]:
        result = self.function.body.body
        value = self._values.get(result, result)
        return list(value.fields) if isinstance(value, relax.Tuple) else [result]

    def _root(self, leaf: Any) -> Any:
        """Return the tensor of the program that another one is or shows; None without one."""
        value: Any = self._values.get(leaf) if isinstance(leaf, relax.Var) else None
        while _calls(value, _RESHAPE):
            leaf = value.args[0]
            value = self._values.get(leaf)
        return leaf if _calls(value, _ALLOC_TENSOR) else None


def _begin(number: int) -> relax.VarBinding:
    """Return a call that tells the capture of a program which kernel call comes next."""
    call = relax.Call(
        relax.ExternFunc(BEGIN_CALL), [tvm.tirx.const(number, "int64")], ty_args=[relax.AnyType()]
    )
    return relax.VarBinding(relax.Var("begin", relax.AnyType()), call)


def _n_bytes(kind: Any) -> int:
    element = tvm.DataType(str(kind.dtype))
    element_bytes = -(-int(element.bits) * int(element.lanes) // 8)
    return math.prod(map(int, kind.shape.values)) * element_bytes


def _reshaped(output: relax.Var, like: relax.Var) -> relax.Call:
    shape = relax.ShapeExpr(like.ty.shape.values)
    return relax.Call(relax.ExternFunc(_RESHAPE), [output, shape], ty_args=[like.ty])


def _calls(value: Any, name: str) -> bool:
    if not isinstance(value, relax.Call):
        return False
    return name in (getattr(value.op, "name", ""), str(getattr(value.op, "global_symbol", "")))


def _allocator(sizes: Sequence[int]) -> relax.Function:
    """Return a function that allocates blocks of memory on the device of the machine."""
    blocks = [relax.Var(f"block_{number}", relax.AnyType()) for number in range(len(sizes))]
    bindings = [
        relax.VarBinding(block, alloc_storage(relax.ShapeExpr([size]), 0, "uint8"))
        for block, size in zip(blocks, sizes, strict=True)
    ]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], relax.Tuple(blocks))
    function = relax.Function([], body, relax.AnyType(), False)
    return function.with_attr("global_symbol", WORKSPACE)

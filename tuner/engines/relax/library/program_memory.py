"""Memory of the programs of a library for a GPU, which they take instead of allocating it.

A program that is captured as a graph reads and writes the same addresses in every replay, so that
no pool may give its memory to anybody else. Its function takes, after the weights, memory for the
outputs that it writes, then the blocks of the workspace, which all programs of a library share.

Every tensor begins where its block does: TVM keeps the offset of a tensor in a block beside its
address, and kernels read the address alone.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.op.vm import alloc_storage

from tuner.errors import WorkError
from tuner.library.manifest import WORKSPACE, ProgramMemory, TensorSpec

_ALLOC_STORAGE, _ALLOC_TENSOR = "relax.vm.alloc_storage", "relax.vm.alloc_tensor"
_KILL, _RESHAPE = "relax.vm.kill_object", "vm.builtin.reshape"


def take_memory(module: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, ProgramMemory]]:
    """Make the programs of a lowered module take their memory.

    Returns:
        The module, with a function that allocates the workspace, and the memory by program.
    """
    changed = tvm.IRModule(module.functions, attrs=module.attrs)
    programs = {
        variable: _Program(function)
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
    }
    sizes = [sorted(program.sizes.values(), reverse=True) for program in programs.values()]
    largest = [max(column) for column in itertools.zip_longest(*sizes, fillvalue=0)]
    memories: dict[str, ProgramMemory] = {}
    for variable, program in programs.items():
        changed[variable], memories[str(variable.name_hint)] = program.rewritten(len(largest))
    changed[tvm.ir.GlobalVar(WORKSPACE)] = _allocator(largest)
    return changed, memories


@dataclass
class _Program:
    """A function whose memory was planned."""

    function: relax.Function

    def __post_init__(self) -> None:
        blocks = self.function.body.blocks
        self._bindings = [binding for block in blocks for binding in block.bindings]
        self._values = {binding.var: binding.value for binding in self._bindings}
        self._n_tensors = Counter(
            value.args[0] for value in self._values.values() if _calls(value, _ALLOC_TENSOR)
        )
        roots = (self._root(leaf) for leaf in self._leaves())
        own = {self._values[root].args[0] for root in roots if root is not None}
        #: Bytes of the storages between the kernels.
        self.sizes = {
            variable: int(value.args[0].values[0])
            for variable, value in self._values.items()
            if _calls(value, _ALLOC_STORAGE) and variable not in own
        }

    def rewritten(self, n_blocks: int) -> tuple[relax.Function, ProgramMemory]:
        """Return the function that takes its memory; the workspace has blocks, the largest first.

        Raises:
            WorkError: If TVM planned tensors that begin inside of a storage.
        """
        returned = self._leaves()
        specs = [_spec(leaf.ty) for leaf in returned]
        outputs: dict[relax.Var, relax.Var] = {}
        written = []
        for number, leaf in enumerate(returned):
            root = self._root(leaf)
            if root is not None and root not in outputs:
                written.append(number)
                outputs[root] = relax.Var(f"output_{number}", leaf.ty)
        blocks = [relax.Var(f"block_{number}", relax.AnyType()) for number in range(n_blocks)]
        order = sorted(self.sizes, key=lambda storage: self.sizes[storage], reverse=True)
        places = dict(zip(order, blocks, strict=False))
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
                storage, offset, *rest = value.args
                if int(offset):
                    raise WorkError("a tensor begins inside of a block of memory")
                value = relax.Call(value.op, [places[storage], offset, *rest], value.attrs)
            bindings.append(relax.VarBinding(variable, value))
        body = relax.SeqExpr([relax.BindingBlock(bindings)], self.function.body.body)
        params = [*self.function.params, *outputs.values(), *blocks]
        attrs = self.function.attrs
        function = relax.Function(params, body, self.function.ret_ty, False, attrs)
        return function, ProgramMemory(tuple(specs), tuple(written))

    def _leaves(self) -> list[Any]:
        result = self.function.body.body
        value = self._values.get(result, result)
        return list(value.fields) if isinstance(value, relax.Tuple) else [result]

    def _root(self, leaf: Any) -> Any:
        """Return the tensor with memory of its own that an output is or shows; None without one."""
        value: Any = self._values.get(leaf)
        while _calls(value, _RESHAPE):
            leaf = value.args[0]
            value = self._values.get(leaf)
        is_own = _calls(value, _ALLOC_TENSOR) and self._n_tensors[value.args[0]] == 1
        return leaf if is_own else None


def _reshaped(output: relax.Var, like: relax.Var) -> relax.Call:
    shape = relax.ShapeExpr(like.ty.shape.values)
    return relax.Call(relax.ExternFunc(_RESHAPE), [output, shape], ty_args=[like.ty])


def _calls(value: Any, name: str) -> bool:
    if not isinstance(value, relax.Call):
        return False
    return name in (getattr(value.op, "name", ""), str(getattr(value.op, "global_symbol", "")))


def _spec(kind: Any) -> TensorSpec:
    """Return shape and dtype of an output; a shape is a vector of whole numbers."""
    if isinstance(kind, relax.ShapeType):
        return ((int(kind.ndim),), "int64")
    return (tuple(int(size) for size in kind.shape.values), str(kind.dtype))


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

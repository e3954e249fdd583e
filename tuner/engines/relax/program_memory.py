"""Memory of the programs of a library for a GPU, which they take instead of allocating it.

A program that is captured as a graph reads and writes the same addresses in every replay, so that
no pool may give its memory to anybody else. Its function takes, after the weights, memory for the
outputs that it writes, then one workspace, which all programs of a library share.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.op.vm import alloc_storage

from tuner.library.manifest import ProgramMemory, TensorSpec

#: Name of the function that allocates the workspace.
WORKSPACE = "tuner_workspace"
# Alignment of the tensors in a workspace, bytes, which is that of cudaMalloc.
_ALIGNMENT = 256
_ALLOC_STORAGE, _ALLOC_TENSOR = "relax.vm.alloc_storage", "relax.vm.alloc_tensor"
_KILL, _RESHAPE = "relax.vm.kill_object", "vm.builtin.reshape"


def take_memory(module: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, ProgramMemory]]:
    """Make the programs of a lowered module take their memory.

    Returns:
        The module, with a function that allocates the workspace, and the memory by program.
    """
    changed = tvm.IRModule(module.functions, attrs=module.attrs)
    memories: dict[str, ProgramMemory] = {}
    n_bytes = [_ALIGNMENT]
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            program = _Program(function)
            changed[variable], memories[str(variable.name_hint)] = program.rewritten()
            n_bytes.append(program.n_bytes)
    changed[tvm.ir.GlobalVar(WORKSPACE)] = _allocator(max(n_bytes))
    return changed, memories


@dataclass
class _Program:
    """A function whose memory was planned, and the places of its storages in the workspace."""

    function: relax.Function
    n_bytes: int = 0

    def __post_init__(self) -> None:
        blocks = self.function.body.blocks
        self._bindings = [binding for block in blocks for binding in block.bindings]
        self._values = {binding.var: binding.value for binding in self._bindings}
        self._n_tensors = Counter(
            value.args[0] for value in self._values.values() if _calls(value, _ALLOC_TENSOR)
        )

    def rewritten(self) -> tuple[relax.Function, ProgramMemory]:
        """Return the function that takes its memory."""
        returned = self._leaves()
        specs = [_spec(leaf.ty) for leaf in returned]
        outputs: dict[relax.Var, relax.Var] = {}
        written = []
        for number, leaf in enumerate(returned):
            root = self._root(leaf)
            if root is not None and root not in outputs:
                written.append(number)
                outputs[root] = relax.Var(f"output_{number}", leaf.ty)
        bindings = self._rebound(outputs)
        body = relax.SeqExpr([relax.BindingBlock(bindings)], self.function.body.body)
        params = [*self.function.params, *outputs.values(), self._workspace]
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

    def _rebound(self, outputs: dict[relax.Var, relax.Var]) -> list[relax.Binding]:
        places: dict[relax.Var, int] = {}
        own = {self._values[root].args[0] for root in outputs}
        self._workspace = relax.Var("workspace", relax.AnyType())
        kept = []
        for binding in self._bindings:
            variable, value = binding.var, binding.value
            if _calls(value, _ALLOC_STORAGE):
                if variable not in own:
                    places[variable] = self.n_bytes
                    size = int(value.args[0].values[0])
                    self.n_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
                continue
            if _calls(value, _KILL) and _calls(self._values.get(value.args[0]), _ALLOC_STORAGE):
                continue
            if variable in outputs:
                value = _reshaped(outputs[variable], variable)
            elif _calls(value, _ALLOC_TENSOR):
                storage, offset, *rest = value.args
                place = relax.prim_value(places[storage] + int(offset))
                value = relax.Call(value.op, [self._workspace, place, *rest], value.attrs)
            kept.append(relax.VarBinding(variable, value))
        return kept


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


def _allocator(n_bytes: int) -> relax.Function:
    """Return a function that allocates memory of a size on the device of the machine."""
    call = alloc_storage(relax.ShapeExpr([n_bytes]), 0, "uint8")
    workspace = relax.Var("workspace", relax.AnyType())
    block = relax.BindingBlock([relax.VarBinding(workspace, call)])
    body = relax.SeqExpr([block], workspace)
    function = relax.Function([], body, relax.AnyType(), False)
    return function.with_attr("global_symbol", WORKSPACE)

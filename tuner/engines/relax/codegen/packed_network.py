"""Launches of whole networks for packs, read from the program that a library has of a network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tuner.engines.base import ModelFile
from tuner.engines.packed import PackedBlock, PackedCandidate, PackedNetwork
from tuner.engines.relax.codegen import link
from tuner.engines.relax.codegen.call_rewriter import LinkableObject
from tuner.engines.relax.codegen.packing import pack_function
from tuner.engines.relax.codegen.weights import WeightPool
from tuner.engines.relax.library.program_memory import take_memory
from tuner.engines.relax.settings import PASS_CONFIG
from tuner.engines.relax.target.targets import make_target
from tuner.errors import WorkError
from tuner.library.manifest import BEGIN_CALL, WORKSPACE

# Tensors that begin where their first argument does, and calls without effect on memory.
_VIEWS = ("relax.vm.alloc_tensor", "vm.builtin.reshape")
_NOTHING = (
    "relax.null_value",
    "relax.vm.kill_object",
    "vm.builtin.check_tensor_info",
    "vm.builtin.match_shape",
    BEGIN_CALL,
)
# Larger weights are drawn: a pack is small, and the time of a kernel hardly depends on them.
_MAX_CONTENT_BYTES = 4096
# Whole numbers of more bytes are indices: those that are too large for a pack are zero.
_MAX_INDEX_BYTES = 1 << 20


class _AnyObject(dict[str, LinkableObject]):
    """Objects of all workloads, whose symbols are the workloads.

    A program for a GPU depends on nothing else of its objects: they take no packed weights.
    """

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, workload: str) -> LinkableObject:
        return LinkableObject(Path(), workload, ())


def pack_network(model: ModelFile, target: str) -> PackedNetwork:
    """Return the launches of a network; see :class:`Engine`."""
    described, weights = make_target(target, intrinsics=False), WeightPool()
    written = link.write_program(0, model, described, _AnyObject(), weights)
    if written.loops:
        raise WorkError("loops of the network call kernels themselves")
    with tvm.transform.PassContext(config=PASS_CONFIG), described:
        module = link.lower_programs(written.functions, written.symbols, described)
        # A kernel with counters never runs beside itself: that is up to the candidates.
        module, memories = take_memory(module, {})
    entry = written.program.entry
    values = weights.values()
    program = _Program(module, written.symbols, described)
    program.take(
        module[entry].params,
        [values[number] for number in written.program.weights],
        len(memories[entry].written),
    )
    return program.read(module[entry], memories[entry].after)


@dataclass
class _Program:
    """The launches of a program, as far as they were read."""

    module: tvm.IRModule
    symbols: Mapping[str, str]
    target: tvm.target.Target
    blocks: list[PackedBlock] = field(default_factory=list)
    calls: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    others: dict[str, PackedCandidate] = field(default_factory=dict)
    # Block of each tensor.
    _places: dict[relax.Var, int] = field(default_factory=dict)
    _tuples: dict[relax.Var, relax.Tuple] = field(default_factory=dict)

    def take(self, params: Sequence[relax.Var], weights: Sequence[Any], n_written: int) -> None:
        """Give a block to each parameter: inputs, weights, outputs, workspace."""
        storages = self.module[WORKSPACE].body.blocks[0].bindings
        sizes = [int(each.value.args[0].values[0]) for each in storages]
        n_inputs = len(params) - len(weights) - n_written - len(sizes)
        blocks = [
            *(_input(each.ty) for each in params[:n_inputs]),
            *map(_weight, weights),
            *(
                PackedBlock(_n_bytes(each.ty))
                for each in params[n_inputs + len(weights) :][:n_written]
            ),
            *map(PackedBlock, sizes),
        ]
        for param, block in zip(params, blocks, strict=True):
            self._places[param] = self._add(block)

    def read(self, function: relax.Function, after: tuple[tuple[int, ...], ...]) -> PackedNetwork:
        """Read the calls of a function whose parameters have blocks.

        Args:
            function: The function.
            after: Calls that each call waits for; empty if each needs the one before it.

        Raises:
            WorkError: If it does something else than launching kernels.
        """
        for part in function.body.blocks:
            for binding in part.bindings:
                self._read(binding.var, binding.value)
        result = function.body.body
        leaves = self._tuples[result].fields if result in self._tuples else [result]
        # Others are shapes, which no kernel writes.
        outputs = tuple(
            (self._places[each], str(each.ty.dtype)) for each in leaves if each in self._places
        )
        blocks, calls = tuple(self.blocks), tuple(self.calls)
        return PackedNetwork(blocks, calls, outputs, self.others, after)

    def _read(self, variable: relax.Var, value: Any) -> None:
        if isinstance(value, relax.Tuple):
            self._tuples[variable] = value
            return
        if isinstance(value, relax.Var):
            self._places[variable] = self._place(value)
            return
        if not isinstance(value, relax.Call):
            raise WorkError(f"the network has a {type(value).__name__}")
        if isinstance(value.op, tvm.ir.GlobalVar):
            name = str(value.op.name_hint)
            kernel = self.symbols.get(name) or self._other(name)
            self.calls.append((kernel, tuple(map(self._place, value.args))))
            return
        name = str(getattr(value.op, "name", "") or getattr(value.op, "global_symbol", ""))
        if name in _VIEWS:
            self._places[variable] = self._place(value.args[0])
        elif name not in _NOTHING:
            raise WorkError(f"the network calls {name}")

    def _place(self, value: Any) -> int:
        """Return the block of a tensor or a constant."""
        if isinstance(value, GenericConst):
            self._places[value] = self._add(_weight(value.value))
        if value not in self._places:
            raise WorkError(f"a kernel of the network takes {value}")
        return self._places[value]

    def _add(self, block: PackedBlock) -> int:
        self.blocks.append(block)
        return len(self.blocks) - 1

    def _other(self, name: str) -> str:
        """Compile a kernel outside of subgraphs; return its name."""
        if name not in self.others:
            kernels, workspace_bytes = pack_function(self.module[name], self.target)
            self.others[name] = PackedCandidate("", "", kernels, workspace_bytes)
        return name


def _input(kind: Any) -> PackedBlock:
    """Return the block of an input: normal numbers, or zeros, which every index may be."""
    dtype = str(kind.dtype)
    if "float" not in dtype:
        return PackedBlock(_n_bytes(kind))
    return PackedBlock(_n_bytes(kind), dtype, None, 0.0, 1.0)


def _weight(value: Any) -> PackedBlock:
    array = value.numpy()
    dtype = str(value.dtype)
    is_drawn = "float" in dtype or array.itemsize == 1
    if array.nbytes <= (_MAX_CONTENT_BYTES if is_drawn else _MAX_INDEX_BYTES):
        return PackedBlock(array.nbytes, dtype, array.tobytes())
    if not is_drawn:
        return PackedBlock(array.nbytes)
    numbers = array.reshape(-1)[: 1 << 20].astype("float32")
    numbers = numbers[np.isfinite(numbers)]  # masks have infinities
    if not numbers.size:
        return PackedBlock(array.nbytes)
    return PackedBlock(array.nbytes, dtype, None, float(numbers.mean()), float(numbers.std()))


def _n_bytes(kind: Any) -> int:
    shape = [int(size) for size in kind.shape.values]
    return math.prod(shape) * np.dtype(str(kind.dtype)).itemsize

"""Launches of whole networks for packs, read from the program that a library has of a network."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.engines.base import ModelFile
from tuner.engines.packed import PackedBlock, PackedCandidate, PackedNetwork
from tuner.engines.relax.codegen import link
from tuner.engines.relax.codegen.call_rewriter import LinkableObject
from tuner.engines.relax.codegen.cuda.packing import pack_function
from tuner.engines.relax.codegen.weights import WeightPool
from tuner.engines.relax.library.program_calls import ProgramCalls
from tuner.engines.relax.library.program_memory import take_memory, workspace_sizes
from tuner.engines.relax.settings import PASS_CONFIG
from tuner.engines.relax.target.targets import make_target
from tuner.errors import WorkError

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
    read = ProgramCalls.of(module[entry])
    given = [values[number] for number in written.program.weights]
    blocks = _blocks(module, entry, given, len(memories[entry].written))
    blocks += map(_weight, read.constants)
    others: dict[str, PackedCandidate] = {}
    calls = []
    for name, places in read.calls:
        kernel = written.symbols.get(name, name)
        if kernel == name and name not in others:  # it belongs to no subgraph
            kernels, workspace_bytes = pack_function(module[name], described)
            others[name] = PackedCandidate("", "", kernels, workspace_bytes)
        calls.append((kernel, places))
    # Others are shapes, which no kernel writes.
    outputs = tuple((block, str(ty.dtype)) for block, ty in read.returned if block is not None)
    return PackedNetwork(tuple(blocks), tuple(calls), outputs, others, memories[entry].after)


def _blocks(
    module: tvm.IRModule, entry: str, weights: Sequence[Any], n_written: int
) -> list[PackedBlock]:
    """Return the block of each parameter: inputs, weights, outputs, workspace."""
    params, sizes = module[entry].params, workspace_sizes(module)
    n_inputs = len(params) - len(weights) - n_written - len(sizes)
    outputs = params[n_inputs + len(weights) :][:n_written]
    return [
        *(_input(each.ty) for each in params[:n_inputs]),
        *map(_weight, weights),
        *(PackedBlock(_n_bytes(each.ty)) for each in outputs),
        *map(PackedBlock, sizes),
    ]


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

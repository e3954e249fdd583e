"""Kernels that travel to a GPU without their compiler: what engines make for packs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Stands among the pointers of a kernel for the memory that the kernels of a candidate share; a
#: number below it for the byte of that memory by which it is lower.
WORKSPACE = -1


@dataclass(frozen=True)
class KernelOffer:
    """The configurations of a workload whose kernels a pack can carry.

    Attributes:
        names: Names of the variants, the fastest by estimate first; empty if there are none.
        secs: Estimated time of the first, seconds.
        arguments: Shape and type of each argument, the outputs last.
        weights: Indices of the arguments that are weights.
    """

    names: tuple[str, ...] = ()
    secs: float = 0.0
    arguments: tuple[tuple[tuple[int, ...], str], ...] = ()
    n_outputs: int = 0
    weights: tuple[int, ...] = ()


@dataclass(frozen=True)
class PackedKernel:
    """A compiled kernel, and how it is launched.

    Attributes:
        name: Name of its function.
        code: Binary for the GPU.
        grid: Blocks of a launch along each axis.
        block: Threads of a block along each axis.
        shared_bytes: Shared memory of a block.
        pointers: Index of the argument of the workload for each pointer, or ``WORKSPACE`` less a
            number of bytes.
        n_parameters: Number of parameters; those after the pointers take zero.
        overlaps: True if it waits itself for the end of the kernel before, and is launched earlier
            (programmatic dependent launch).
    """

    name: str
    code: bytes
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    pointers: tuple[int, ...]
    n_parameters: int
    overlaps: bool


@dataclass(frozen=True)
class PackedCandidate:
    """A compiled candidate.

    Attributes:
        trace: Trace that its record has.
        module_hash: Hash of its program.
        kernels: Kernels in the order of their launches.
        workspace_bytes: Size of the memory that they share.
    """

    trace: str
    module_hash: str
    kernels: Sequence[PackedKernel]
    workspace_bytes: int


@dataclass(frozen=True)
class PackedSource:
    """A candidate that the machine with the GPU may compile.

    Attributes:
        trace: Trace that its record has.
        module_hash: Hash of its program.
        program: Sources of its kernels, JSON.
        max_shared_bytes: Shared memory that a block can have.
    """

    trace: str
    module_hash: str
    program: str
    max_shared_bytes: int


@dataclass(frozen=True)
class PackedBlock:
    """Memory of a network.

    Attributes:
        dtype: Type of what it holds before the kernels run; empty for nothing.
        content: Its content then; None where it is drawn from a normal distribution.
        mean: Mean of the distribution.
        spread: Its standard deviation.
    """

    n_bytes: int
    dtype: str = ""
    content: bytes | None = None
    mean: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class PackedNetwork:
    """The launches of a network.

    Attributes:
        blocks: Memory of inputs, weights, outputs, and between kernels.
        calls: Kernels and the blocks of their arguments, in the order of the launches: the kernels
            are those of a workload, by its hash, or of :attr:`others`, by name.
        outputs: Block and type of each output.
        others: Kernels that belong to no workload.
        after: For each call, the calls that must have ended before it begins, if no kernel has
            counters; empty if each needs the one before it.
    """

    blocks: tuple[PackedBlock, ...]
    calls: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[int, str], ...]
    others: Mapping[str, PackedCandidate]
    after: tuple[tuple[int, ...], ...] = ()

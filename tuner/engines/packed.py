"""Kernels that travel to a GPU without their compiler: what engines make for packs."""

from collections.abc import Sequence
from dataclasses import dataclass

#: Stands among the pointers of a kernel for the memory that the kernels of a candidate share.
WORKSPACE = -1


@dataclass(frozen=True)
class KernelOffer:
    """The configurations of a workload whose kernels a pack can carry.

    Attributes:
        names: Names of the variants, the fastest by estimate first; empty if there are none.
        secs: Estimated time of the first, seconds.
        arguments: Shape and type of each argument, the outputs last.
        n_outputs: Number of outputs.
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
        n_blocks: Blocks of a launch.
        n_threads: Threads of a block.
        shared_bytes: Shared memory of a block.
        pointers: Index of the argument of the workload for each pointer, or ``WORKSPACE``.
        n_parameters: Number of parameters; those after the pointers take zero.
        overlaps: True if it waits itself for the end of the kernel before, and is launched earlier
            (programmatic dependent launch).
    """

    name: str
    code: bytes
    n_blocks: int
    n_threads: int
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

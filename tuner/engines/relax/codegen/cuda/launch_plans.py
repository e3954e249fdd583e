"""Launches of the programs of a library for a GPU, for runtimes that have no TVM."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm.target import Target

from tuner.engines.base import LinkedProgram
from tuner.engines.packed import WORKSPACE, PackedKernel
from tuner.engines.relax.codegen.call_rewriter import LinkableObject
from tuner.engines.relax.codegen.cuda.packing import read_launches
from tuner.engines.relax.library.program_calls import ProgramCalls
from tuner.engines.relax.library.program_memory import workspace_sizes
from tuner.errors import WorkError
from tuner.library.manifest import KernelLaunch, LaunchPlan, ProgramMemory

_LOGGER = logging.getLogger(__name__)


@dataclass
class PlanMaker:
    """Maker of the plans of a linked module.

    Attributes:
        module: The module, whose programs take their memory.
        target: Target for a GPU.
        objects: Object that each call is of, by name of the call.
        loops: Calls that run kernels in a loop of their own.
        own: Binaries of the kernels that are not of objects.
        content: Content of the linked library.
    """

    module: tvm.IRModule
    target: Target
    objects: Mapping[str, LinkableObject]
    loops: Collection[str]
    own: Sequence[bytes]
    content: bytes

    def __post_init__(self) -> None:
        self._kernels: dict[str, tuple[Sequence[PackedKernel], int]] = {}
        self._places: dict[bytes, int] = {}

    def planned(self, program: LinkedProgram, memory: ProgramMemory) -> LinkedProgram:
        """Return a program with its memory, and with a plan unless it does more than launching."""
        try:
            return replace(program, memory=memory, plan=self._plan(program, memory))
        except WorkError as error:
            _LOGGER.info("no plan of the launches of %s: %s", program.entry, error)
            return replace(program, memory=memory)

    def _plan(self, program: LinkedProgram, memory: ProgramMemory) -> LaunchPlan:
        function = self.module[program.entry]
        read, sizes = ProgramCalls.of(function), workspace_sizes(self.module)
        n_before = len(function.params) - len(sizes)  # inputs, weights and outputs
        if read.constants:
            raise WorkError("it reads constants of the program")
        outputs = tuple(block for block, _ in read.returned if block is not None)
        if len(outputs) < len(read.returned):
            raise WorkError("it returns a shape")
        launches: list[KernelLaunch] = []
        ends: list[int] = []  # the last launch of each call
        scratch: dict[int, int] = {}  # place of memory of its own among the sizes, by call
        for number, (name, blocks) in enumerate(read.calls):
            kernels, n_bytes = self._kernels_of(name)
            after = tuple(ends[call] for call in memory.after[number]) if memory.after else ()
            # Memory of kernels that may run beside each other is not shared.
            owner = number if memory.after else 0
            if n_bytes and owner not in scratch:
                scratch[owner] = len(sizes)
                sizes.append(0)
            if n_bytes:
                sizes[scratch[owner]] = max(sizes[scratch[owner]], n_bytes)
            for kernel in kernels:
                pointers = tuple(
                    (blocks[at], 0) if at >= 0 else (n_before + scratch[owner], WORKSPACE - at)
                    for at in kernel.pointers
                )
                launches.append(self._launch(kernel, pointers, after))
                after = (len(launches) - 1,)
            ends.append(len(launches) - 1)
        return LaunchPlan(tuple(sizes), tuple(launches), outputs, not memory.after)

    def _kernels_of(self, name: str) -> tuple[Sequence[PackedKernel], int]:
        """Return the kernels of a call and the size of the memory that they share."""
        if name in self.loops:
            raise WorkError("a loop of it calls kernels itself")
        linked = self.objects.get(name)
        if linked is not None:
            if linked.launches is None:
                raise WorkError(f"the launches of {linked.symbol} are not known")
            return linked.launches
        if name not in self._kernels:
            self._kernels[name] = read_launches(self.module[name], self.target, self.own)
        return self._kernels[name]

    def _launch(
        self, kernel: PackedKernel, pointers: tuple[tuple[int, int], ...], after: tuple[int, ...]
    ) -> KernelLaunch:
        if kernel.code not in self._places:  # a network calls most of its kernels several times
            self._places[kernel.code] = self.content.find(kernel.code)
        at = self._places[kernel.code]
        if at < 0:
            raise WorkError(f"the binary of {kernel.name} is not in the library")
        return KernelLaunch(
            name=kernel.name,
            at=at,
            n_bytes=len(kernel.code),
            grid=kernel.grid,
            block=kernel.block,
            shared_bytes=kernel.shared_bytes,
            pointers=pointers,
            n_parameters=kernel.n_parameters,
            overlaps=kernel.overlaps,
            after=after,
        )

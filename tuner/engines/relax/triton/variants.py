"""Contractions by Triton, as variants of a workload.

The program of a variant is the workload with the name of the configuration as an attribute: the
kernels follow from both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import tvm
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tuner.engines.relax.schedules.gpu import block_limits
from tuner.engines.relax.triton import compiler, ranking
from tuner.engines.relax.triton.configurations import FAMILY, Configuration
from tuner.engines.relax.triton.contractions import Contraction
from tuner.engines.relax.triton.gemm import print_program
from tuner.engines.relax.triton.printer import PrintError
from tuner.engines.relax.triton.programs import Program
from tuner.errors import WorkError

# Attribute of a program: name of the configuration.
_MARK = "tuner.triton"
# Configurations that a search may measure, and those that a subgraph without a record tries.
_MAX_CHOICES, _MAX_TRIES = 48, 4
# Fewer steps or elements are not worth tensor cores.
_MIN_STEPS = 8


@dataclass(frozen=True)
class TritonGemm:
    """Contractions on tensor cores; see :class:`Variant`."""

    name: str = FAMILY
    growth: float = 1.0

    def rewrite(self, module: tvm.IRModule) -> tvm.IRModule | None:
        """See :class:`Variant`."""
        return module if _find(module["main"]) is not None else None

    def flop(self, module: tvm.IRModule) -> float:
        """See :class:`Variant`."""
        contraction = _find(module["main"])
        return 0.0 if contraction is None else contraction.flop

    def gain(self, _program: tvm.IRModule, _target: Target) -> float:
        """See :class:`Variant`: subgraphs without a record ask :func:`by_default`."""
        return 0.0

    def choices(self, program: tvm.IRModule, target: Target) -> Sequence[Configuration]:
        """See :class:`Variant`."""
        contraction, number = _find(program["main"]), compiler.number_of(str(target.attrs["arch"]))
        return [] if contraction is None else ranking.ranked(contraction, number)[:_MAX_CHOICES]

    def schedule(self, program: tvm.IRModule, _target: Target, choice: Configuration) -> Schedule:
        """See :class:`Variant`."""
        return Schedule(marked(program, choice))

    def name_of(self, schedule: Schedule) -> str:
        """See :class:`Variant`: it holds the decisions."""
        return name_of(schedule.mod["main"])


GEMM = TritonGemm()


def variants_for(_module: tvm.IRModule, target: Target | None) -> list[TritonGemm]:
    """Return the variants that Triton compiles for a target; none where it is missing."""
    return [GEMM] if target and compiler.supports(str(target.attrs["arch"])) else []


def named(name: str) -> TritonGemm | None:
    """Return the variant whose decisions a name holds; None for another kind of variant."""
    return GEMM if is_named(name) else None


def is_named(name: str) -> bool:
    """Return True for the name of a program by Triton."""
    return name.startswith(GEMM.name)


def rewrite(name: str, module: tvm.IRModule) -> tvm.IRModule:
    """Return the program of a name for a workload.

    Raises:
        WorkError: If the name is unknown, or the workload has no such program.
    """
    configuration = Configuration.named(name)
    if configuration is None:
        raise WorkError(f"there is no variant {name}: the record was made by another version")
    if _find(module["main"]) is None:
        raise WorkError(f"variant {name} does not fit the workload")
    return marked(module, configuration)


def marked(module: tvm.IRModule, configuration: Configuration) -> tvm.IRModule:
    """Return a workload that Triton compiles with a configuration."""
    return tvm.IRModule({"main": module["main"].with_attr(_MARK, configuration.name)})


def program_of(function: PrimFunc) -> Program | None:
    """Return the kernels of a marked workload; None for another one.

    Raises:
        WorkError: If the workload has no such kernels.
    """
    name = name_of(function)
    if not name:
        return None
    configuration, contraction = Configuration.named(name), _find(function)
    if configuration is None or contraction is None:
        raise WorkError(f"variant {name} does not fit the workload")
    return print_program(contraction, configuration)


def name_of(function: PrimFunc) -> str:
    """Return the name of the variant of a program; empty for the workload itself."""
    return str((function.attrs or {}).get(_MARK, ""))


def by_default(module: tvm.IRModule, target: Target) -> tvm.IRModule | None:
    """Return the program of a workload without a record; None if Triton has none for it.

    It is the first of the ranked configurations that spills no registers.
    """
    arch = str(target.attrs["arch"])
    contraction = _find(module["main"]) if compiler.supports(arch) else None
    if contraction is None:
        return None
    limit = block_limits.shared_bytes_on_request(target)
    for configuration in GEMM.choices(module, target)[:_MAX_TRIES]:
        scheduled = marked(module, configuration)
        try:
            program = print_program(contraction, configuration)
            binaries = [compiler.compile_kernel(each, arch) for each in program.kernels]
        except WorkError:
            continue
        if all(not each.facts.stack_bytes and each.shared_bytes <= limit for each in binaries):
            return scheduled
    return None


def find(function: PrimFunc) -> Contraction | None:
    """Return the contraction of a workload that Triton computes; None if there is none."""
    return _find(function)


@lru_cache(maxsize=64)
def _find(function: PrimFunc) -> Contraction | None:
    contraction = Contraction.find(function)
    if contraction is None or contraction.n_steps < _MIN_STEPS or contraction.stores_batches:
        return None
    smallest = Configuration(1 if contraction.n_rows == 1 else 16, 16, 32, 2, 4)
    try:
        print_program(contraction, smallest)
    except PrintError:
        return None
    return contraction

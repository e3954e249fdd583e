"""Kernels of Triton as variants of a workload.

The program of a variant is the workload with the name of the configuration as an attribute: the
kernels follow from both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tuner.engines.relax.schedules.gpu import block_limits
from tuner.engines.relax.triton import ranking
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.expressions.printer import PrintError
from tuner.engines.relax.triton.gpus import Gpu
from tuner.engines.relax.triton.programs import Program
from tuner.engines.relax.triton.templates import attention, configurations, gemm, rows, windows
from tuner.engines.relax.triton.templates.attention import Attention
from tuner.engines.relax.triton.templates.configurations import Decisions
from tuner.engines.relax.triton.templates.contractions import Contraction
from tuner.engines.relax.triton.templates.rows import Rows
from tuner.engines.relax.triton.templates.windows import Windows
from tuner.errors import WorkError

# Attribute of a program: name of the configuration.
_MARK = "tuner.triton"
# Configurations that a search may measure, and that a subgraph without a record tries.
_MAX_CHOICES, _MAX_TRIES = 48, 4
# What a thread may spill where every try spills.
_MAX_SPILLED_BYTES = 32
# Fewer steps are not worth tensor cores.
_MIN_STEPS = 8


@dataclass(frozen=True)
class Template:
    """Kernels of a kind of workload; see :class:`Variant`.

    Attributes:
        match: Finds what it computes in a workload; None for other workloads.
        decisions: Class of its configurations.
        ranked: Returns the configurations for a GPU (see :func:`gpus.gpu_of`), the fastest first.
        estimate_secs: Estimates the times of configurations inside of a graph, seconds, shape (n,),
            from their numbers, shape (n, numbers of ``decisions``), on a GPU.
        print: Prints the kernels of a configuration.
    """

    decisions: type[Decisions]
    match: Callable[[PrimFunc], Any]
    ranked: Callable[..., Sequence[Any]]
    estimate_secs: Callable[[Any, np.ndarray, Gpu], np.ndarray]
    print: Callable[[Any, Any], Program]
    growth: float = 1.0

    @property
    def name(self) -> str:
        """Name with which the names of its configurations begin."""
        return self.decisions.family

    def find(self, function: PrimFunc) -> Any:
        """Return what the kernels compute in a workload; None if they do not fit it."""
        return _find(self, function)[0]

    def refusal(self, function: PrimFunc) -> str:
        """Return what of a workload has no form in the kernels; empty if nothing is known."""
        return _find(self, function)[1]

    def rewrite(self, module: tvm.IRModule) -> tvm.IRModule | None:
        return module if self.find(module["main"]) is not None else None

    def flop(self, module: tvm.IRModule) -> float:
        matched = self.find(module["main"])
        return 0.0 if matched is None else float(matched.flop)

    def gain(self, _program: tvm.IRModule, _target: Target) -> float:
        """See :class:`Variant`: subgraphs without a record ask :func:`by_default`."""
        return 0.0

    def choices(self, program: tvm.IRModule, target: Target) -> Sequence[Any]:
        matched = self.find(program["main"])
        return [] if matched is None else self.ranked(matched, *gpu_key(target))[:_MAX_CHOICES]

    def schedule(self, program: tvm.IRModule, _target: Target, choice: Any) -> Schedule:
        return Schedule(marked(program, choice.name))

    def name_of(self, schedule: Schedule) -> str:
        """See :class:`Variant`: it holds the decisions."""
        return name_of(schedule.mod["main"])


def _match_contraction(function: PrimFunc) -> Contraction | None:
    contraction = Contraction.find(function)
    if contraction is None or contraction.n_steps < _MIN_STEPS or contraction.stores_batches:
        return None
    return contraction


#: Products and convolutions.
GEMM = Template(
    configurations.Configuration,
    _match_contraction,
    ranking.ranked,
    ranking.estimate_secs,
    gemm.print_program,
)
#: A product, the softmax of it and the product with that.
ATTENTION = Template(
    attention.Configuration,
    Attention.find,
    attention.ranked,
    attention.estimate_secs,
    attention.print_program,
)
#: Reductions along rows.
ROWS = Template(
    rows.Configuration,
    Rows.find,
    rows.ranked,
    rows.estimate_secs,
    rows.print_program,
)
#: Reductions of windows.
WINDOWS = Template(
    windows.Configuration,
    Windows.find,
    windows.ranked,
    windows.estimate_secs,
    windows.print_program,
)
TEMPLATES = (GEMM, ATTENTION, ROWS, WINDOWS)


def gpu_key(target: Target) -> tuple[int, int]:
    """Return the architecture and the size of the second-level cache of a target, 0 if unknown."""
    cache_bytes = int(target.attrs.get("l2_cache_size_bytes", 0))
    return compiler.number_of(str(target.attrs["arch"])), cache_bytes


def variants_for(_module: tvm.IRModule, target: Target | None) -> Sequence[Template]:
    """Return the variants that Triton compiles for a target; none where it is missing."""
    return TEMPLATES if target and compiler.supports(str(target.attrs["arch"])) else ()


def named(name: str) -> Template | None:
    """Return the template of a variant by its name or that of a configuration; None for others."""
    fitting = (each for each in TEMPLATES if f"{name}-".startswith(f"{each.name}-"))
    return next(fitting, None)


def rewrite(name: str, module: tvm.IRModule) -> tvm.IRModule:
    """Return the program of a name for a workload.

    Raises:
        WorkError: If the name is unknown, or the workload has no such program.
    """
    print_named(name, module["main"])
    return marked(module, name)


def name_of(function: PrimFunc) -> str:
    """Return the name of the variant of a program; empty for the workload itself."""
    return str((function.attrs or {}).get(_MARK, ""))


def program_of(function: PrimFunc) -> Program | None:
    """Return the kernels of a program; None for the workload itself.

    Raises:
        WorkError: If the name is unknown, or the workload has no such kernels.
    """
    name = name_of(function)
    return print_named(name, function) if name else None


def print_named(name: str, function: PrimFunc) -> Program:
    """Print the kernels of a name for a workload.

    Raises:
        WorkError: If the name is unknown, or the workload has no such kernels.
    """
    template = named(name)
    configuration = None if template is None else template.decisions.named(name)
    if template is None or configuration is None:
        raise WorkError(f"there is no variant {name}: the record was made by another version")
    matched = template.find(function)
    if matched is None:
        reason = template.refusal(function)
        raise WorkError(f"variant {name} does not fit the workload{reason and ': '}{reason}")
    return template.print(matched, configuration)


def by_default(module: tvm.IRModule, target: Target) -> tvm.IRModule | None:
    """Return the program of a workload without a record; None if Triton has none for it.

    It is the first of the ranked configurations that spills no registers, else the first that
    spills fewest: a second kernel may spill a few for more blocks, as its assembler sees fit.
    """
    arch = str(target.attrs["arch"])
    limit = block_limits.shared_bytes_on_request(target)
    for template in TEMPLATES if compiler.supports(arch) else ():
        fewest, kept = _MAX_SPILLED_BYTES + 1.0, None
        for choice in template.choices(module, target)[:_MAX_TRIES]:
            program = marked(module, choice.name)
            spilled = _spilled_bytes(program["main"], arch, limit)
            if spilled < fewest:
                fewest, kept = spilled, program
            if not spilled:
                break
        if kept is not None:
            return kept
    return None


def fits(function: PrimFunc, architecture: int = 90) -> bool:
    """Return whether a template has kernels for a workload that are not slower than its parts'."""
    products = GEMM.find(function)
    if products is not None and not ranking.pays(products, architecture):
        return False
    return any(template.find(function) is not None for template in TEMPLATES)


def _spilled_bytes(function: PrimFunc, arch: str, limit: int) -> float:
    """Return what threads spill of their registers; inf if the kernels cannot run."""
    try:
        program = program_of(function)
        kernels = () if program is None else program.kernels
        binaries = [compiler.compile_kernel(kernel, arch) for kernel in kernels]
    except WorkError:
        return math.inf
    if any(each.shared_bytes > limit for each in binaries):
        return math.inf
    return sum(each.facts.stack_bytes for each in binaries)


def marked(module: tvm.IRModule, name: str) -> tvm.IRModule:
    """Return the program of a name that fits the workload."""
    return tvm.IRModule({"main": module["main"].with_attr(_MARK, name)})


@lru_cache(maxsize=64)
def _find(template: Template, function: PrimFunc) -> tuple[Any, str]:
    matched = template.match(function)
    if matched is None:
        return None, ""
    try:
        template.print(matched, template.ranked(matched, 90)[0])
    except PrintError as error:
        return None, str(error)
    except IndexError:
        return None, "no configuration fits a GPU"
    return matched, ""

"""The variants that workloads may have."""

from collections.abc import Iterable
from functools import lru_cache

import tvm
from tvm.target import Target
from tvm.tirx import Cast

from tuner.engines import onednn
from tuner.engines.relax import step_loops
from tuner.engines.relax.kinds import is_cpu
from tuner.engines.relax.schedules.variants.base import Variant
from tuner.engines.relax.schedules.variants.convolutions import block_of, statements_of
from tuner.engines.relax.schedules.variants.onednn import Onednn, variants_for
from tuner.engines.relax.schedules.variants.winograd import Winograd
from tuner.engines.relax.triton import compiler
from tuner.engines.relax.triton import variants as triton
from tuner.errors import WorkError

VARIANTS: tuple[Variant, ...] = (Winograd(4), Winograd(2))


def fitting(module: tvm.IRModule) -> dict[str, tvm.IRModule]:
    """Return the programs of the variants that fit a workload, by name; none may be changed."""
    return _programs(VARIANTS, module)


def fitting_calls(module: tvm.IRModule, target: Target) -> dict[str, tvm.IRModule]:
    """Return the programs by name that call the libraries of a target for a workload.

    None where a library is missing: the panels that it asks for would be unknown.
    """
    if not calls_onednn(target) or onednn.problem() or step_loops.is_serial(module):
        return {}
    return _programs(variants_for(module, int(target.attrs.get("num-cores", 1))), module)


def fitting_kernels(module: tvm.IRModule, target: Target) -> dict[str, tvm.IRModule]:
    """Return the programs by name that Triton compiles for a GPU; none where it is missing."""
    if not compiler.supports(str(target.attrs["arch"])):
        return {}
    return _programs([triton.GEMM], module)


def family_of(name: str) -> str:
    """Return the name of the variant whose decisions another name may hold."""
    return triton.GEMM.name if triton.is_named(name) else name


def _programs(variants: Iterable[Variant], module: tvm.IRModule) -> dict[str, tvm.IRModule]:
    programs = {variant.name: _program(variant, module) for variant in variants}
    return {name: program for name, program in programs.items() if program is not None}


@lru_cache(maxsize=64)
def _program(variant: Variant, module: tvm.IRModule) -> tvm.IRModule | None:
    return None if _truncates(module) else variant.rewrite(module)


def calls_onednn(target: Target) -> bool:
    """Return whether the kernels of a target may call oneDNN."""
    machine = str(target.attrs.get("mtriple", "x86_64")).partition("-")[0]
    is_supported = is_cpu(target) and machine == "x86_64"
    return is_supported and onednn.NAME in map(str, target.attrs.get("libs", ()))


def named(name: str) -> Variant:
    """Return a variant.

    Raises:
        WorkError: If there is none of this name.
    """
    if (by_onednn := Onednn.named(name)) is not None:
        return by_onednn
    if triton.is_named(name):
        return triton.GEMM
    for variant in VARIANTS:
        if variant.name == name:
            return variant
    raise WorkError(f"there is no variant {name}: the record was made by another version")


def rewrite(name: str, module: tvm.IRModule) -> tvm.IRModule:
    """Return the program of a variant for a workload.

    Raises:
        WorkError: If the variant is unknown or does not fit.
    """
    if triton.is_named(name):
        return triton.rewrite(name, module)
    program = _program(named(name), module)
    if program is None:
        raise WorkError(f"variant {name} does not fit the workload")
    return program


def flop(module: tvm.IRModule) -> dict[str, float]:
    """Return the floating-point operations of the variants that fit a workload, by name."""
    return {name: named(name).flop(module) for name in fitting(module)}


def growth(module: tvm.IRModule) -> float:
    """Return the largest growth of the variants that fit a workload; 0 for none."""
    names = fitting(module)
    return max((each.growth for each in VARIANTS if each.name in names), default=0.0)


def _truncates(module: tvm.IRModule) -> bool:
    """Return whether a workload converts floats to integers as they are.

    Its sums are whole numbers, which those of another program need not be.
    """
    for statement in statements_of(module["main"]):
        value = getattr(getattr(block_of(statement), "body", None), "value", None)
        if isinstance(value, Cast) and hasattr(value.value, "indices"):
            kinds = str(value.value.source.dtype), str(value.ty.dtype)
            if kinds[0].startswith("float") and kinds[1].startswith("int"):
                return True
    return False

"""The variants that workloads for a CPU may have."""

import tvm

from tuner.engines.relax.variants.base import Variant
from tuner.engines.relax.variants.winograd import Winograd
from tuner.errors import WorkError

VARIANTS: tuple[Variant, ...] = (Winograd(4), Winograd(2))


def fitting(module: tvm.IRModule) -> dict[str, tvm.IRModule]:
    """Return the programs of the variants that fit a workload, by name."""
    programs = ((variant.name, variant.rewrite(module)) for variant in VARIANTS)
    return {name: program for name, program in programs if program is not None}


def named(name: str) -> Variant:
    """Return a variant.

    Raises:
        WorkError: If there is none of this name.
    """
    for variant in VARIANTS:
        if variant.name == name:
            return variant
    raise WorkError(f"there is no variant {name}: the record was made by another version")


def rewrite(name: str, module: tvm.IRModule) -> tvm.IRModule:
    """Return the program of a variant for a workload.

    Raises:
        WorkError: If the variant is unknown or does not fit.
    """
    program = named(name).rewrite(module)
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

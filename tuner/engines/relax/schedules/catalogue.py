"""The table of all schedules: rules by kind of target, and variants."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx import Cast

from tuner.engines.relax.codegen.cpu.dot_instructions import dot_instruction
from tuner.engines.relax.schedules.base import ScheduleRule, Workload
from tuner.engines.relax.schedules.cpu import (
    attention,
    direct,
    dots,
    grouped,
    lanes,
    packed_weights,
    padded,
    ragged,
    rows,
    streamed,
    tiled,
)
from tuner.engines.relax.schedules.cpu.primitives.products import find_product
from tuner.engines.relax.schedules.gpu import dlight
from tuner.engines.relax.schedules.variants import onednn, winograd
from tuner.engines.relax.schedules.variants.base import Variant
from tuner.engines.relax.schedules.variants.convolutions import block_of, statements_of
from tuner.engines.relax.triton import variants as triton
from tuner.errors import WorkError


@dataclass(frozen=True)
class Row:
    """Rules for one kind of workload, whose schedules take turns.

    Attributes:
        match: Returns what the rules are for in a workload; None for a workload of another kind.
        rules: Rules by name, which records keep.
        pays: Estimate without which the row is skipped.
        is_closed: True if no search finds faster schedules of what these rules fit: TVM's spaces
            have none that keep the scores of attention in the cache, and most of their programs of
            packed weights do not compile.
    """

    match: Callable[[Workload], Any]
    rules: Mapping[str, ScheduleRule]
    pays: Callable[[Workload, Any], bool] = lambda *_: True
    is_closed: bool = False


def _find_dots(workload: Workload) -> dots.DotProduct | None:
    if dot_instruction(workload.target) is None:
        return None
    return dots.find_dot_product(Schedule(workload.module))


#: Rules by kind of target. Of the rows, the first that has schedules is the only one that is used.
RULES: Mapping[str, Sequence[Row]] = {
    "llvm": (
        Row(_find_dots, {"dots": dots.ranked}, is_closed=True),
        Row(
            lambda workload: packed_weights.find_weight_product(Schedule(workload.module)),
            {"packed-weights": packed_weights.ranked},
            is_closed=True,
        ),
        Row(
            lambda workload: attention.find_attention(Schedule(workload.module)),
            {"attention": attention.ranked},
            is_closed=True,
        ),
        Row(find_product, {"lanes": lanes.ranked}),
        Row(
            find_product,
            {"ragged": ragged.ranked, "padded": padded.ranked, "direct": direct.ranked},
            padded.pays,
        ),
        # A panel of a grouped convolution reads its weights once.
        Row(
            find_product,
            {
                "grouped": grouped.ranked,
                "streamed": streamed.ranked,
                "direct": direct.ranked,
                "tiled": tiled.ranked,
            },
            streamed.pays,
        ),
        Row(
            find_product,
            {
                "grouped": grouped.ranked,
                "direct": direct.ranked,
                "tiled": tiled.ranked,
                "streamed": streamed.ranked,
            },
        ),
        Row(rows.find_rows, {"rows": rows.ranked}),
    ),
    "cuda": (
        Row(
            lambda workload: workload.module["main"],
            {f"dlight-{name}": rule for name, rule in dlight.RULES.items()},
        ),
    ),
}


@dataclass(frozen=True)
class Family:
    """Variants that differ in their numbers.

    Attributes:
        named: Returns the variant of a name; None for a name of another family.
        variants: Returns the variants that are worth a trial for a workload on a target; without
            a target, those for any CPU.
        rewrite: Returns the program of a name, which holds decisions, for a workload; None where
            the program is that of the variant.
    """

    named: Callable[[str], Variant | None]
    variants: Callable[[tvm.IRModule, Target | None], Iterable[Variant]]
    rewrite: Callable[[str, tvm.IRModule], tvm.IRModule] | None = None


#: Families of variants by kind of target.
VARIANTS: Mapping[str, Sequence[Family]] = {
    "llvm": (
        Family(winograd.Winograd.named, winograd.variants_for),
        Family(onednn.Onednn.named, onednn.variants_for),
    ),
    "cuda": (Family(triton.named, triton.variants_for, triton.rewrite),),
}


def fitting(module: tvm.IRModule, target: Target | None = None) -> dict[Variant, tvm.IRModule]:
    """Return the variants that fit a workload, with their programs, which must not be changed.

    Args:
        module: Unscheduled workload.
        target: Target of the programs; None for the variants that any CPU may have.
    """
    kind = "llvm" if target is None else str(target.kind.name)
    programs = {
        variant: _program(variant, module)
        for family in VARIANTS[kind]
        for variant in family.variants(module, target)
    }
    return {variant: each for variant, each in programs.items() if each is not None}


@lru_cache(maxsize=64)
def _program(variant: Variant, module: tvm.IRModule) -> tvm.IRModule | None:
    return None if _truncates(module) else variant.rewrite(module)


def named(name: str) -> Variant:
    """Return a variant.

    Raises:
        WorkError: If there is none of this name.
    """
    return _family(name)[1]


def family_of(name: str) -> str:
    """Return the name of the variant whose decisions another name may hold."""
    return next((variant.name for _, variant in _families(name)), name)


def rewrite(name: str, module: tvm.IRModule) -> tvm.IRModule:
    """Return the program of a variant for a workload.

    Raises:
        WorkError: If the variant is unknown or does not fit.
    """
    family, variant = _family(name)
    if family.rewrite is not None:
        return family.rewrite(name, module)
    program = _program(variant, module)
    if program is None:
        raise WorkError(f"variant {name} does not fit the workload")
    return program


def _family(name: str) -> tuple[Family, Variant]:
    for each in _families(name):
        return each
    raise WorkError(f"there is no variant {name}: the record was made by another version")


def _families(name: str) -> Iterator[tuple[Family, Variant]]:
    """Yield the family of a name, with the variant; none of an unknown name."""
    for families in VARIANTS.values():
        for family in families:
            if (variant := family.named(name)) is not None:
                yield family, variant


def flop(module: tvm.IRModule) -> dict[str, float]:
    """Return the floating-point operations of the variants that fit a workload, by name."""
    return {variant.name: variant.flop(module) for variant in fitting(module)}


def growth(module: tvm.IRModule) -> float:
    """Return the largest growth of the variants that fit a workload; 0 for none."""
    return max((variant.growth for variant in fitting(module)), default=0.0)


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

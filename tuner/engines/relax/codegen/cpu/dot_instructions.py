"""Instructions of x86 that add products of neighbouring integers to 32-bit lanes.

VNNI's ``vpdpbusd`` adds four products of unsigned and signed bytes. Without it, ``pmaddwd`` adds
two products of 16-bit integers, which hold any byte, so that no sum saturates as those of
``pmaddubsw`` do. Weights are packed as an instruction reads them: blocks of as many columns as it
has lanes, of which each has its terms side by side.
"""

from dataclasses import dataclass
from functools import lru_cache

import tvm
from tvm import tirx
from tvm.target import Target

from tuner.engines.relax.target.kinds import is_cpu


@dataclass(frozen=True)
class DotInstruction:
    """An instruction that multiplies terms of one row with terms of several columns.

    Attributes:
        name: Name of the tensor intrinsic.
        llvm: Name in LLVM.
        feature: Feature of the CPU that has it.
        lanes: Columns.
        terms: Terms of each column.
        data: Type of the data.
        weight: Type of the weights.
        n_registers: Vector registers of such a CPU.
    """

    name: str
    llvm: str
    feature: str
    lanes: int
    terms: int
    data: str
    weight: str
    n_registers: int

    @property
    def accumulates(self) -> bool:
        """True if it adds to the sums itself."""
        return self.weight == "int8"


_VPDPBUSD, _PMADDWD = ("uint8", "int8"), ("int16", "int16")

#: The best of a CPU comes first.
INSTRUCTIONS = (
    DotInstruction(
        "dot_16x4_vnni", "llvm.x86.avx512.vpdpbusd.512", "avx512vnni", 16, 4, *_VPDPBUSD, 32
    ),
    DotInstruction("dot_8x4_vnni", "llvm.x86.avx512.vpdpbusd.256", "avxvnni", 8, 4, *_VPDPBUSD, 16),
    DotInstruction("dot_8x2_madd", "llvm.x86.avx2.pmadd.wd", "avx2", 8, 2, *_PMADDWD, 16),
    DotInstruction("dot_4x2_madd", "llvm.x86.sse2.pmadd.wd", "sse2", 4, 2, *_PMADDWD, 16),
)


def packed_for(weight: tirx.Buffer) -> DotInstruction | None:
    """Return the instruction that reads weights as they lie in a buffer; None if there is none."""
    form = (str(weight.dtype), *map(int, weight.shape[-2:]))
    return next((by for by in INSTRUCTIONS if form == (by.weight, by.lanes, by.terms)), None)


@lru_cache(maxsize=8)
def dot_instruction(target: Target) -> DotInstruction | None:
    """Return the instruction for products of bytes on a target; None if floats are as fast."""
    if not is_cpu(target):
        return None

    def has(feature: str) -> bool:
        return bool(tvm.target.codegen.llvm_cpu_has_features(feature, target))

    # Multiplying and adding floats of 512 bits takes as long as pairs of 16-bit integers.
    if has("avx512f") and not has("avx512vnni"):
        return None
    return next((each for each in INSTRUCTIONS if has(each.feature)), None)

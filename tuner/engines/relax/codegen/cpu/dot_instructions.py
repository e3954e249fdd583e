"""Instructions of x86 that add products of neighbouring integers to 32-bit lanes.

VNNI's ``vpdpbusd`` adds four products of unsigned and signed bytes. Without it, ``pmaddwd`` adds
two products of 16-bit integers, which hold any byte, so that no sum saturates as those of
``pmaddubsw`` do. Weights are packed as an instruction reads them: blocks of as many columns as it
has lanes, of which each has its terms side by side.
"""

# ruff: noqa: N803  names of buffers, as TVM's descriptions have them

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T  # noqa: N812  the name that TVM's parser knows
from tvm.target import Target

from tuner.engines.relax import fast_import
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


def _description(by: DotInstruction) -> Any:
    """Describe the sums that an instruction adds to."""
    lanes, terms, data, weight = by.lanes, by.terms, by.data, by.weight

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def sums(
        A: T.Buffer((terms,), data, offset_factor=1),  # type: ignore[valid-type]
        B: T.Buffer((lanes, terms), weight, offset_factor=1),  # type: ignore[valid-type]
        C: T.Buffer((lanes,), "int32", offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:terms], B[0:lanes, 0:terms])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, terms):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")

    return sums


def _implementation(by: DotInstruction) -> Any:
    """Return the instruction on vectors."""
    lanes, terms, data, weight, sums = by.lanes, by.terms, by.data, by.weight, f"int32x{by.lanes}"
    terms_type = f"{data}x{terms}"
    data_type, weight_type = f"{data}x{lanes * terms}", f"{weight}x{lanes * terms}"
    number, accumulates = by.llvm, by.accumulates

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def multiply(
        A: T.Buffer((terms,), data, offset_factor=1),  # type: ignore[valid-type]
        B: T.Buffer(  # type: ignore[valid-type]
            (lanes, terms), weight, strides=[terms, 1], offset_factor=1
        ),
        C: T.Buffer((lanes,), "int32", offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:terms], B[0:lanes, 0:terms])
            T.writes(C[0:lanes])
            row = T.reinterpret(A.vload([0], terms_type), dtype="int32")
            rows = T.reinterpret(T.broadcast(row, lanes), dtype=data_type)
            columns = B.vload([0, 0], dtype=weight_type)
            # TVM tells LLVM that its own sums of integers never wrap around.
            if accumulates:
                C[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                    T.llvm_lookup_intrinsic_id(number),
                    C.vload([0], dtype=sums),
                    rows,
                    columns,
                    dtype=sums,
                )
            else:
                products = T.call_llvm_pure_intrin(
                    T.llvm_lookup_intrinsic_id(number), rows, columns, dtype=sums
                )
                C[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                    T.llvm_lookup_intrinsic_id("llvm.vp.add"),
                    C.vload([0], dtype=sums),
                    products,
                    T.broadcast(T.bool(True), lanes),
                    T.int32(lanes),
                    dtype=sums,
                )

    return multiply


def register(by: DotInstruction) -> None:
    """Register the intrinsic of an instruction by its name; that of TVM for VNNI is replaced.

    TVM's passes vectors of 16 integers to LLVM's ``vpdpbusd``, which takes vectors of bytes now,
    and reads weights that do not lie side by side as if they did; here these do not compile.
    """
    with fast_import.without_stack():
        TensorIntrin.register(by.name, _description(by), _implementation(by), override=True)

"""Tensor intrinsics of instructions that add products of integers.

One replaces that of TVM for VNNI, which passes vectors of 16 integers to LLVM's ``vpdpbusd``, which
takes vectors of bytes now. TVM's also reads weights that do not lie side by side as if they did;
here these do not compile.
"""

# ruff: noqa: N803  names of buffers, as TVM's descriptions have them

from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T  # noqa: N812  the name that TVM's parser knows

from tuner.engines.relax import fast_import
from tuner.engines.relax.codegen.cpu.dot_instructions import DotInstruction


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
    """Register the intrinsic of an instruction by its name; that of TVM for VNNI is replaced."""
    with fast_import.without_stack():
        TensorIntrin.register(by.name, _description(by), _implementation(by), override=True)

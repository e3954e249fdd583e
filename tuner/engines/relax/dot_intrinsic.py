"""Tensor intrinsic of VNNI, which replaces that of TVM.

TVM passes vectors of 16 integers to LLVM's ``vpdpbusd``, which takes vectors of 64 bytes now.
TVM's also reads weights that do not lie side by side as if they did; here these do not compile.
"""

# ruff: noqa: N803  names of buffers, as TVM's description has them

from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.s_tir.tensor_intrin import x86
from tvm.script import tirx as T  # noqa: N812  the name that TVM's parser knows


@T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
def _multiply(
    A: T.Buffer((4,), "uint8", offset_factor=1),  # type: ignore[valid-type]
    B: T.Buffer((16, 4), "int8", strides=[4, 1], offset_factor=1),  # type: ignore[valid-type]
    C: T.Buffer((16,), "int32", offset_factor=1),  # type: ignore[valid-type]
) -> None:
    """Add the products of four bytes with those of each of 16 columns."""
    with T.sblock("root"):
        T.reads(C[0:16], A[0:4], B[0:16, 0:4])
        T.writes(C[0:16])
        terms = T.reinterpret(A.vload([0], "uint8x4"), dtype="int32")
        C[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
            C.vload([0], dtype="int32x16"),
            T.reinterpret(T.broadcast(terms, 16), dtype="uint8x64"),
            B.vload([0, 0], dtype="int8x64"),
            dtype="int32x16",
        )


def register() -> None:
    """Replace the intrinsic; its name and description stay."""
    description: Any = x86.dot_product_16x4_u8i8i32_desc
    TensorIntrin.register(x86.VNNI_DOT_16x4_INTRIN, description, _multiply, override=True)

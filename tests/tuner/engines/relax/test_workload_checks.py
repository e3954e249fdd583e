"""IR from a log may compute, and call nothing else."""

import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm.script import tirx as T  # noqa: N812  TVM's own name for it

from tuner.engines.allowed_calls import ALLOWED_CALLS, check_calls
from tuner.engines.base import BuildRequest
from tuner.engines.relax.codegen import build
from tuner.engines.relax.ir import ir_checks, traces, workloads
from tuner.errors import WorkError

TARGET = '{"kind":"llvm","mcpu":"x86-64"}'


def module_of(value: Callable[[Any], Any]) -> tvm.IRModule:
    """Return a kernel that adds a value to each element of its argument."""

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def main(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")) -> None:  # type: ignore[valid-type]
        for i in range(4):
            with T.sblock("sum"):
                v = T.axis.spatial(4, i)
                b[v] = a[v] + value(a[v])

    return tvm.IRModule({"main": main.with_attr("global_symbol", "main")})


def test_arithmetic_is_allowed() -> None:
    """Every operator of mathematics survives storage."""
    module = module_of(lambda x: T.exp(x) + T.if_then_else(x > 0, T.tanh(x), T.erf(x)))
    ir = workloads.dump(module)

    assert workloads.hash_of(workloads.load(ir)) == workloads.hash_of(module)


@pytest.mark.parametrize(
    "value",
    [
        lambda _: T.Cast("float32", T.call_extern("int32", "system", "true")),
        lambda _: T.call_pure_extern("float32", "getenv", "HOME"),
        lambda _: T.Cast("float32", T.tvm_call_packed("testing.echo", 1)),
        lambda _: T.call_llvm_pure_intrin("float32", "llvm.sqrt.f32", T.float32(1)),
    ],
    ids=["C library", "pure C library", "packed function", "intrinsic of LLVM"],
)
def test_a_call_out_of_the_kernel_is_refused(value: Callable[[Any], Any], tmp_path: Any) -> None:
    """The build of such a candidate fails before anything is compiled."""
    ir = workloads.dump(module_of(value))

    with pytest.raises(WorkError, match="may not call"):
        workloads.load(ir)
    built = build.build(BuildRequest(ir, TARGET, "", str(tmp_path / "out")))
    assert "may not call" in built.error_text
    assert not (tmp_path / "out").exists()


def test_code_in_attributes_is_refused() -> None:
    """Pragmas and annotations may hold code of LLVM or C, and modules further modules."""
    plain = module_of(lambda x: x)
    body = plain["main"].body
    for key in ("pragma_import_llvm", "pragma_import_c"):
        wrapped = tvm.tirx.AttrStmt(
            tvm.tirx.IntImm("int32", 0), key, tvm.tirx.IntImm("int32", 1), body
        )
        function = tvm.tirx.PrimFunc(plain["main"].params, wrapped)
        with pytest.raises(WorkError, match="may not have"):
            ir_checks.check(tvm.IRModule({"main": function}))
    with pytest.raises(WorkError, match="without attributes"):
        ir_checks.check(plain.with_attr("external_mods", "x"))
    with pytest.raises(WorkError, match="module"):
        workloads.load(zlib.compress(tvm.ir.save_json(plain["main"]).encode()))


def test_code_in_a_trace_is_refused() -> None:
    """A trace that annotates a loop with code is not replayed."""
    trace = [[["Annotate", ["l1", "x"], ["pragma_import_llvm"], []]], []]

    with pytest.raises(WorkError, match="may not have 'pragma_import_llvm'"):
        traces.replay(module_of(lambda x: x), json.dumps(trace))


def test_names_are_compared_without_their_prefix() -> None:
    """The prefix differs between versions of TVM, and an unknown operator is refused."""
    check_calls(["tirx.exp", "tir.exp", "exp"])
    assert not ALLOWED_CALLS & {"call_extern", "call_pure_extern", "tvm_call_packed"}
    with pytest.raises(WorkError, match=r"may not call 'tirx\.call_extern'"):
        check_calls(["tirx.call_extern"])

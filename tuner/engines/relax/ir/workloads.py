"""Workloads: a fused kernel as a separate module, with hash, bytes and name."""

import hashlib
import math
import re
import zlib
from functools import lru_cache

import tvm
import tvm_ffi
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.tirx import PrimFunc

from tuner.engines.relax.ir import canonical_ir, ir_checks

#: Attribute of the step of a loop, which is part of its workload: 1 if it may not start threads.
STEP = "tuner.serial_step"

_LIBRARY_CALLS = {"tirx.tvm_call_packed", "tirx.call_extern", "tirx.call_pure_extern"}


def as_workload(function: PrimFunc) -> tvm.IRModule:
    """Wrap a kernel so that equal subgraphs of different networks become equal modules."""
    bare = function.without_attr("global_symbol").with_attr("global_symbol", "main")
    return tvm.IRModule({"main": bare.with_attr("tirx.noalias", True)})


def is_opaque(function: PrimFunc) -> bool:
    """Return whether a kernel calls a library, or has its schedule: it is not to be searched."""
    if "tirx.is_scheduled" in (function.attrs or {}):
        return True
    names: set[str] = set()
    collect = (tvm.ir.Call, lambda call: names.add(str(getattr(call.op, "name", ""))))
    tvm_ffi.structural_walk(function.body, (collect,))
    return bool(names & _LIBRARY_CALLS)


def name_of(ir: bytes) -> str:
    """Return the name of a workload: the SHA-256 of its canonical IR."""
    return hashlib.sha256(zlib.decompress(ir)).hexdigest()


def hash_of(module: tvm.IRModule) -> str:
    """Return the structural hash, 16 hexadecimal digits; names of variables do not count."""
    return f"{tvm_ffi.structural_hash(module) & 0xFFFFFFFFFFFFFFFF:016x}"


def dump(module: tvm.IRModule) -> bytes:
    """Serialise a module: TVM's JSON graph in canonical form, zlib."""
    return zlib.compress(canonical_ir.write(module).encode(), 9)


@lru_cache(maxsize=16)
def load(ir: bytes) -> tvm.IRModule:
    """Deserialise the output of :func:`dump`; the module is shared and must not be changed.

    Parsing takes a tenth of a build, and a process builds many candidates of one workload.

    Raises:
        WorkError: If it calls what a subgraph may not call, because it may come from a log.
    """
    module = canonical_ir.read(zlib.decompress(ir).decode())
    ir_checks.check(module)
    return module


def define(irs: list[bytes]) -> list[str]:
    """Return the definitions of workloads as TVMScript; see :class:`Engine`."""
    return [load(ir).script() for ir in irs]


def flop_of(module: tvm.IRModule) -> float:
    """Return the floating-point operations of one run, as TVM counts them."""
    return float(estimate_tir_flops(module))


def n_bytes_of(module: tvm.IRModule) -> int:
    """Return the bytes of all inputs and outputs."""
    return sum(
        math.prod(int(size) for size in param.shape) * tvm.DataType(param.dtype).bits // 8
        for param in module["main"].params
    )


def title(function_name: str) -> str:
    """Strip counters and the fusion prefix from a kernel name."""
    words = function_name.removeprefix("fused_").split("_")
    return "_".join(re.sub(r"(?<=[a-z])(\dd)?\d*$", r"\1", word) for word in words if word)

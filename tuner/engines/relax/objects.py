"""Compile one subgraph to an object file that any network can be linked from."""

import time
from pathlib import Path

import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tuner.engines.base import ObjectRequest, ObjectResult
from tuner.engines.relax import traces, workloads
from tuner.engines.relax.build import KERNEL, PACK, split_packing
from tuner.engines.relax.linker import link_shared
from tuner.engines.relax.settings import PASS_CONFIG
from tuner.engines.relax.targets import make_target
from tuner.errors import ModelError

OBJECT = "kernel.o"
PACKER = "pack.so"


def compile_subgraph(request: ObjectRequest) -> ObjectResult:
    """Compile a subgraph; see :class:`Engine`."""
    target = make_target(request.target)
    if str(target.kind.name) != "llvm":
        raise ModelError("building for CUDA targets is not supported yet")
    started = time.perf_counter()
    out = Path(request.out)
    scheduled = traces.schedule_module(workloads.load(request.ir), request.trace, target)
    functions, packed = split_packing(scheduled["main"])
    _write(functions[KERNEL], request.symbol, target, out / OBJECT)
    if packed:
        _write(functions[PACK], PACK, target, out / f"{PACK}.o")
        link_shared([out / f"{PACK}.o"], out / PACKER)
        (out / f"{PACK}.o").unlink()
    return ObjectResult({"packed": packed}, time.perf_counter() - started)


def _write(function: PrimFunc, symbol: str, target: Target, path: Path) -> None:
    module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    with tvm.transform.PassContext(config=PASS_CONFIG):
        tvm.tirx.build(module, target=target).write_to_file(str(path), "o")

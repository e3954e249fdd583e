"""Compilation of one subgraph to an object file that any network can link."""

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tuner.engines.base import ObjectRequest, ObjectResult
from tuner.engines.linker import link_shared
from tuner.engines.relax import cpu_codegen, cuda, fallbacks, traces, workloads
from tuner.engines.relax.blobs import DeviceModule
from tuner.engines.relax.build import KERNEL, PACK, schedule_for_gpu, split_packing
from tuner.engines.relax.failures import described
from tuner.engines.relax.targets import make_target
from tuner.errors import LinkError

OBJECT = "kernel.o"
PACKER = "pack.so"
BINARY = "kernel.cubin"


def compile_subgraph(request: ObjectRequest) -> ObjectResult:
    """Compile a subgraph; see :class:`Engine`."""
    target = make_target(request.target)
    started = time.perf_counter()
    compile_for = _compile_for_gpu if cuda.is_cuda(target) else _compile_for_cpu
    with described(_failure):
        info = compile_for(request, target, Path(request.out))
    return ObjectResult(info, time.perf_counter() - started)


def _failure(kind: str) -> LinkError:
    return LinkError(
        f"a subgraph cannot be compiled ({kind}): the log of the process has the details; "
        "report it with the model"
    )


def load_device(folder: Path, info: Mapping[str, Any]) -> DeviceModule | None:
    """Return the GPU binary of a subgraph; None if it was compiled for a CPU."""
    if "kernels" not in info:
        return None
    table = base64.b64decode(info["kernels"])
    return DeviceModule("cubin", table, (folder / BINARY).read_bytes())


def _compile_for_cpu(request: ObjectRequest, target: Target, out: Path) -> Mapping[str, Any]:
    if request.trace:
        scheduled = traces.schedule_module(workloads.load(request.ir), request.trace, target)
    else:
        scheduled = fallbacks.schedule(request.ir, request.target, target)
    functions, packed = split_packing(scheduled["main"])
    _write(functions[KERNEL], request.symbol, target, out / OBJECT)
    if packed:
        _write(functions[PACK], PACK, target, out / f"{PACK}.o")
        link_shared([out / f"{PACK}.o"], out / PACKER)
        (out / f"{PACK}.o").unlink()
    return {"packed": packed}


def _compile_for_gpu(request: ObjectRequest, target: Target, out: Path) -> Mapping[str, Any]:
    scheduled = schedule_for_gpu(workloads.load(request.ir), request.trace, target)
    function = scheduled["main"].with_attr("global_symbol", request.symbol)
    host, device = cuda.build(tvm.IRModule({request.symbol: function}), target)
    host.write_to_file(str(out / OBJECT), "o")
    (out / BINARY).write_bytes(device.code)
    return {"packed": [], "kernels": base64.b64encode(device.table).decode()}


def _write(function: PrimFunc, symbol: str, target: Target, path: Path) -> None:
    module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    cpu_codegen.compile_kernels(module, target).write_to_file(str(path), "o")

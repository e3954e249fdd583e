"""Compilation of one subgraph to an object file that any network can link."""

import base64
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tuner.engines.base import ObjectRequest, ObjectResult, variant_of
from tuner.engines.linker import find_linker, link_shared
from tuner.engines.packed import PackedKernel
from tuner.engines.relax.codegen.build import PACK, build_for_gpu, schedule_for_gpu, split_packing
from tuner.engines.relax.codegen.cpu import cpu_codegen
from tuner.engines.relax.codegen.cuda.packing import read_launches
from tuner.engines.relax.ir import ir_checks, traces, workloads
from tuner.engines.relax.ir.blobs import DeviceModule
from tuner.engines.relax.run import reference
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.target import cpu_targets
from tuner.engines.relax.target.kinds import is_cuda
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton import variants as triton
from tuner.engines.runs import KERNEL
from tuner.errors import LinkError, OutOfMemory, WorkError, described, error_text

OBJECT = "kernel.o"
PACKER = "pack.so"
PACK_OBJECT = f"{PACK}.o"
BINARY = "kernel.cubin"
# Weights are packed while a library is linked. Code for any CPU of this machine's kind gives the
# same bytes on each.
_THIS_MACHINE = Target({"kind": "llvm"})

_LOGGER = logging.getLogger(__name__)


def compile_subgraph(request: ObjectRequest) -> ObjectResult:
    """Compile a subgraph; see :class:`Engine`."""
    target = make_target(request.target)
    started = time.perf_counter()
    compile_for = _compile_for_gpu if is_cuda(target) else _compile_for_cpu
    with described(_failure):
        info = compile_for(request, target, Path(request.out))
    return ObjectResult(info, time.perf_counter() - started)


def _failure(reason: str) -> LinkError:
    return LinkError(f"a subgraph cannot be compiled{reason}; report it with the model")


def load_devices(folder: Path, info: Mapping[str, Any]) -> list[DeviceModule]:
    """Return the GPU binaries of a subgraph; none if it was compiled for a CPU."""
    return [
        DeviceModule("cubin", base64.b64decode(table), (folder / name).read_bytes())
        for name, table in info.get("kernels", {}).items()
    ]


def load_launches(
    devices: Sequence[DeviceModule], info: Mapping[str, Any]
) -> tuple[list[PackedKernel], int] | None:
    """Return the kernels of a subgraph and the size of the memory that they share.

    None if it was compiled for a CPU, or does more than launching kernels.
    """
    stored = info.get("launches")
    if stored is None:
        return None
    kernels = [
        msgspec.convert({**each, "code": devices[each["code"]].code}, PackedKernel)
        for each in stored["kernels"]
    ]
    return kernels, stored["n_bytes"]


def _compile_for_cpu(request: ObjectRequest, target: Target, out: Path) -> Mapping[str, Any]:
    module = workloads.load(request.ir)
    # Without one, the library could not be linked in the end.
    find_linker(cpu_targets.machine_of(target.attrs))
    if request.trace:
        scheduled = traces.schedule_module(module, request.trace, target)
        info = _write_kernel(scheduled, request, target, out)
    else:
        info = _write_by_rule(module, request, target, out)
    (out / PACK_OBJECT).unlink(missing_ok=True)
    return info


def _write_by_rule(
    module: tvm.IRModule, request: ObjectRequest, target: Target, out: Path
) -> Mapping[str, Any]:
    """Compile a subgraph by rule, or unscheduled if no rule fits it or the kernels are wrong.

    A variant is less accurate than the definition: it is used where its kernel can be verified.
    """
    rules: list[Callable[[tvm.IRModule, Target], str]] = [ranking.compute_trace]
    if reference.runs_here(request.target):
        rules.insert(0, ranking.compute_variant)
    for compute_trace in rules:
        trace = compute_trace(module, target)
        info = _write_verified(module, replace(request, trace=trace), target, out)
        if info is not None:
            return info
    return _write_kernel(module, request, target, out)


def _write_verified(
    module: tvm.IRModule, request: ObjectRequest, target: Target, out: Path
) -> Mapping[str, Any] | None:
    """Compile a trace by rule, if there is one; return None if its kernel is wrong or fails."""
    if not request.trace:
        return None
    try:
        scheduled = traces.schedule_module(module, request.trace, target)
        info = _write_kernel(scheduled, request, target, out)
        if not reference.runs_here(request.target):
            return info
        packed = info["packed"]
        objects = [out / OBJECT, *([out / PACK_OBJECT] if packed else [])]
        if reference.is_correct(request, objects, packed):
            return info
        _LOGGER.warning("the kernel by rule of %s is wrong", request.symbol)
    except (OSError, MemoryError, OutOfMemory):
        raise  # an exhausted machine is not a failure of the schedule
    except Exception as error:  # of a compiler; or the kernel cannot be verified, or fails
        _LOGGER.debug("no schedule by rule for %s: %s", request.symbol, error_text(error))
    (out / PACKER).unlink(missing_ok=True)
    return None


def _write_kernel(
    scheduled: tvm.IRModule, request: ObjectRequest, target: Target, out: Path
) -> Mapping[str, Any]:
    """Compile a kernel, and link the packing of its weights; return the object's description."""
    functions, packed = split_packing(scheduled["main"])
    _write(functions[KERNEL], request.symbol, target, out / OBJECT)
    if packed:
        _write(functions[PACK], PACK, _THIS_MACHINE, out / PACK_OBJECT)
        link_shared([out / PACK_OBJECT], out / PACKER)
    return {
        "packed": packed,
        "variant": variant_of(request.trace),
        "n_parallel": ir_checks.n_parallel(functions[KERNEL]),
    }


def _compile_for_gpu(request: ObjectRequest, target: Target, out: Path) -> Mapping[str, Any]:
    scheduled = schedule_for_gpu(workloads.load(request.ir), request.trace, target)
    function = scheduled["main"].with_attr("global_symbol", request.symbol)
    host, devices = build_for_gpu(function, target)
    host.write_to_file(str(out / OBJECT), "o")
    tables = {}
    for number, device in enumerate(devices):
        name = f"kernel.{number}.cubin" if number else BINARY
        (out / name).write_bytes(device.code)
        tables[name] = base64.b64encode(device.table).decode()
    return {
        "packed": [],
        "variant": triton.name_of(function),
        "kernels": tables,
        "launches": _launches(function, target, [device.code for device in devices]),
    }


def _launches(function: PrimFunc, target: Target, codes: list[bytes]) -> dict[str, Any] | None:
    """Return what :func:`load_launches` reads, in which code is the number of a binary."""
    try:
        kernels, n_bytes = read_launches(function, target, codes)
    except WorkError as error:
        _LOGGER.info("no plan of the launches: %s", error)
        return None
    stored = [{**vars(kernel), "code": codes.index(kernel.code)} for kernel in kernels]
    return {"kernels": stored, "n_bytes": n_bytes}


def _write(function: PrimFunc, symbol: str, target: Target, path: Path) -> None:
    module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    cpu_codegen.compile_kernels(module, target).write_to_file(str(path), "o")

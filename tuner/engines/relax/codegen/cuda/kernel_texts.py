"""The code of a candidate for people: its schedule, what is compiled, its instructions."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tuner.engines.base import BuildRequest, KernelPart
from tuner.engines.relax.codegen.build import schedule_for_gpu, split_packing
from tuner.engines.relax.codegen.cpu import cpu_codegen
from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.ir.blobs import Blob
from tuner.engines.relax.target.kinds import is_cuda
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton import variants as triton
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.programs import Kernel, Program
from tuner.engines.runs import KERNEL
from tuner.errors import WorkError

# Lines of LLVM's assembly for debuggers and unwinders, and the sections of debuggers at its end.
_DEBUG_LINE = re.compile(r"\s*(\.loc|\.file|\.cfi_\w+)\b|\.L(tmp|func_(begin|end))\d+:")
_DEBUG_SECTION = re.compile(r"\s*\.section\s+\.debug")
# What LLVM's source says to debuggers.
_DEBUG_NOTE = re.compile(r",? !dbg !\d+|^ +#dbg_.*\n", re.MULTILINE)


def print_kernel(request: BuildRequest, parts: Sequence[KernelPart]) -> Mapping[str, str]:
    """Return parts of a candidate's code; see :class:`Engine`."""
    target = make_target(request.target)
    module = workloads.load(request.ir)
    texts_for = _texts_for_gpu if is_cuda(target) else _texts_for_cpu
    texts = texts_for(module, request.trace, target)
    return {part: texts[part]() for part in parts}


_Texts = Mapping[KernelPart, Callable[[], str]]


def _texts_for_cpu(module: tvm.IRModule, trace: str, target: Target) -> _Texts:
    scheduled = traces.schedule_module(module, trace, target)

    def compiled(form: str) -> str:
        functions, _ = split_packing(scheduled["main"])
        kernel = tvm.IRModule({KERNEL: functions[KERNEL]})
        return str(cpu_codegen.compile_kernels(kernel, target).inspect_source(form))

    return {
        "schedule": scheduled.script,
        "source": lambda: _DEBUG_NOTE.sub("", compiled("ll").partition("\n!llvm.")[0]),
        "assembly": lambda: _without_debugging(compiled("asm")),
    }


def _without_debugging(assembly: str) -> str:
    lines = []
    for line in assembly.splitlines():
        if _DEBUG_SECTION.match(line):
            break
        if not _DEBUG_LINE.match(line):
            lines.append(line)
    return "\n".join(lines)


def _texts_for_gpu(module: tvm.IRModule, trace: str, target: Target) -> _Texts:
    scheduled = schedule_for_gpu(module, trace, target)
    function = scheduled["main"].with_attr("global_symbol", KERNEL)
    program = triton.program_of(function)
    if program is not None:
        return _texts_of_triton(function, program, target)

    def source() -> str:
        devices = Blob.of(nvrtc.lower(tvm.IRModule({KERNEL: function}), target)).devices
        if not devices:
            raise WorkError("the schedule leaves nothing to the GPU")
        return "\n".join(nvrtc.source_of(device) for device in devices)

    return {
        "schedule": scheduled.script,
        "source": source,
        "assembly": lambda: nvrtc.compile_source(source(), target, "ptx").decode(),
    }


def _texts_of_triton(function: PrimFunc, program: Program, target: Target) -> _Texts:
    arch = str(target.attrs["arch"])

    def joined(text_of: Callable[[Kernel], str]) -> str:
        return "\n".join(text_of(kernel) for kernel in program.kernels)

    def launch(kernel: Kernel) -> str:
        return (
            f"{kernel.name}: {kernel.n_blocks} blocks of {kernel.n_warps} warps, "
            f"{kernel.n_stages} stages"
        )

    name = triton.name_of(function)
    return {
        "schedule": lambda: "\n".join([*_decisions(name), joined(launch)]),
        "source": lambda: joined(lambda kernel: kernel.source),
        "assembly": lambda: joined(lambda kernel: compiler.print_ptx(kernel, arch)),
    }


def _decisions(name: str) -> list[str]:
    """Return the decisions of a configuration of Triton, a line each."""
    template = triton.named(name)
    decided: Any = None if template is None else template.decisions.named(name)
    return [name, *(f"  {each} = {value}" for each, value in asdict(decided).items())]

"""Fusion of operators to kernels: regions that are one kernel, and the definitions of the rest."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.dispatch_sort_scan import DispatchSortScan
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tuner.engines.relax.graph.definitions.definitions import GPU_LEGALIZATIONS, LEGALIZATIONS
from tuner.engines.relax.graph.definitions.guards import guard_kernels
from tuner.engines.relax.graph.definitions.opaque_kernels import normalise_kernels
from tuner.engines.relax.graph.definitions.prefix_sums import legalise_cumsum
from tuner.engines.relax.graph.definitions.resizes import RESIZES
from tuner.engines.relax.graph.definitions.scatters import SCATTERS
from tuner.engines.relax.graph.definitions.sorts import SORTS_ON_CPUS, SORTS_ON_GPUS
from tuner.engines.relax.graph.definitions.special_values import DEFINITIONS
from tuner.engines.relax.graph.passes.attention import Fits, outline_attention, seal_regions
from tuner.engines.relax.graph.passes.convolutions.slices import legalise_pad, legalise_slice
from tuner.engines.relax.graph.passes.products.cached_products import TransposeReader
from tuner.engines.relax.ir.tensor_types import is_fixed
from tuner.engines.relax.schedules.cpu import attention
from tuner.engines.relax.schedules.cpu.attention import is_worthwhile
from tuner.engines.relax.target.kinds import is_cpu
from tuner.engines.relax.triton import variants as triton
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.expressions.kernel_blocks import KernelBlocks

_DEFINITIONS = {
    "relax.cumsum": legalise_cumsum,
    "relax.nn.pad": legalise_pad,
    "relax.strided_slice": legalise_slice,
    **DEFINITIONS,
    **RESIZES,
    **SCATTERS,
}
# Patterns of TVM, see tvm/relax/op_attr_types.h.
_BROADCAST, _INJECTIVE, _FUSABLE = 1, 2, 4
# Steps of sums that are repeated, at most: by the model of the GPU, longer ones take more time than
# another kernel.
_MAX_STEPS = 64


@dataclass(frozen=True)
class _Regions:
    """The regions, such as attention, that are one kernel on a kind of target.

    Attributes:
        fits: Returns whether one kernel is faster; see :func:`outline_attention`.
        has_schedule: Returns whether a kernel has a schedule.
        is_for_gpu: True for GPUs; see :func:`outline_attention`.
    """

    fits: Fits
    has_schedule: Callable[[Any], bool]
    is_for_gpu: bool = False


_CPU_REGIONS = _Regions(is_worthwhile, lambda kernel: attention.has_schedule(Schedule(kernel)))


def fuse(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Lower operators to kernels: one for each region that has a schedule, several for others.

    Without a schedule, one kernel is slower than several.
    """
    if is_cpu(target):
        regions = _CPU_REGIONS
    elif compiler.supports(arch := str(target.attrs["arch"])):
        fits = partial(triton.fits, architecture=compiler.number_of(arch))
        regions = _Regions(lambda *_: True, fits, is_for_gpu=True)
    else:
        return _fuse(module, target)
    outline = partial(outline_attention, is_for_gpu=regions.is_for_gpu)
    outlined, results = outline(module, regions.fits)
    whole = _fuse(outlined, target)
    kernels = normalise_kernels(whole)
    unscheduled = [name for name in results if not regions.has_schedule(kernels[name])]
    apart = [call for name in unscheduled for call in results[name]]
    if not apart:
        return whole
    outlined, _ = outline(module, regions.fits, apart)
    return _fuse(outlined, target)


def _fuse(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    transform = relax.transform
    if is_cpu(target):
        own = {**LEGALIZATIONS, **SORTS_ON_CPUS}
    else:
        own = {**GPU_LEGALIZATIONS, **SORTS_ON_GPUS}
        module = TransposeReader(module).run(module)
    # TVM's sorts have no legalisation; they call its runtime.
    define = [transform.LegalizeOps({**_DEFINITIONS, **own}), DispatchSortScan()]
    with target:
        module = tvm.transform.Sequential([transform.FoldConstant(), *define])(module)
        module = guard_kernels(module)
        annotate = [transform.AnnotateTIROpPattern(), transform.FoldConstant()]
        module = seal_regions(tvm.transform.Sequential(annotate)(module))
        module = module if is_cpu(target) else keep_gates_apart(module)
        return tvm.transform.Sequential([transform.FuseOps(), transform.FuseTIR()])(module)


def keep_gates_apart(module: tvm.IRModule) -> tvm.IRModule:
    """Have TVM fuse no product of more than 64 steps with a result that is larger.

    Such long sums scale channels in squeeze and excitation: a thread that computes an element of
    the result would sum again what all elements of a channel share.

    Args:
        module: Network of kernels with their patterns.
    """
    functions = dict(module.functions_items())
    for function in module.functions.values():
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            _mark_gates(function.body, functions)
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _mark_gates(body: relax.SeqExpr, functions: dict[Any, Any]) -> None:
    """Change the pattern of kernels whose result is larger than the sums that it follows from."""
    # Elements and steps of sums, by the variables that follow from them element by element.
    sums: dict[relax.Var, tuple[int, int]] = {}
    for binding in (binding for block in body.blocks for binding in block.bindings):
        call: Any = getattr(binding, "value", None)
        if getattr(getattr(call, "op", None), "name", "") != "relax.call_tir":
            continue
        kernel = functions[call.args[0]]
        if not isinstance(call.ty, relax.TensorType) or not is_fixed(call.ty):
            continue
        n_elements = math.prod(map(int, call.ty.shape))
        pattern = int((kernel.attrs or {}).get("op_pattern", _FUSABLE + 1))
        if pattern == _FUSABLE:
            sums[binding.var] = n_elements, _n_steps(kernel)
        elif pattern <= _BROADCAST:
            before = [sums[each] for each in call.args[1] if each in sums]
            if any(n < n_elements and steps > _MAX_STEPS for n, steps in before):
                functions[call.args[0]] = kernel.with_attr("op_pattern", _INJECTIVE)
            elif before:
                sums[binding.var] = max(before)


def _n_steps(kernel: PrimFunc) -> int:
    blocks = KernelBlocks.of(kernel)
    if blocks is None:
        return 0
    return max((math.prod(a.extent for a in each.reduced) for each in blocks.reductions), default=0)

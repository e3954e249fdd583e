"""Pass pipeline from an imported model to fused, unscheduled kernels."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.dispatch_sort_scan import DispatchSortScan
from tvm.s_tir import Schedule
from tvm.target import Target

from tuner.engines.base import ModelFile
from tuner.engines.relax.codegen.dot_instructions import dot_instruction
from tuner.engines.relax.frontend.importer import import_model
from tuner.engines.relax.graph.definitions.comparisons import COMPARISONS
from tuner.engines.relax.graph.definitions.definitions import GPU_LEGALIZATIONS, LEGALIZATIONS
from tuner.engines.relax.graph.definitions.guards import guard_kernels
from tuner.engines.relax.graph.definitions.opaque_kernels import normalise_kernels
from tuner.engines.relax.graph.definitions.prefix_sums import legalise_cumsum
from tuner.engines.relax.graph.definitions.scatters import SCATTERS, split_scatters
from tuner.engines.relax.graph.definitions.special_values import CPU_DEFINITIONS, DEFINITIONS
from tuner.engines.relax.graph.fold import fold_constants
from tuner.engines.relax.graph.layout import assign_layouts
from tuner.engines.relax.graph.linkable import check_linkable
from tuner.engines.relax.graph.passes.attention import Fits, outline_attention, seal_regions
from tuner.engines.relax.graph.passes.convolutions.affine import fold_affine
from tuner.engines.relax.graph.passes.convolutions.concat import split_concatenations
from tuner.engines.relax.graph.passes.convolutions.flat_windows import flatten_windows
from tuner.engines.relax.graph.passes.convolutions.padding import pad_channels
from tuner.engines.relax.graph.passes.convolutions.slices import legalise_pad, legalise_slice
from tuner.engines.relax.graph.passes.convolutions.sparse_windows import split_sparse_windows
from tuner.engines.relax.graph.passes.convolutions.transposed_convolutions import (
    replace_transposed_convolutions,
)
from tuner.engines.relax.graph.passes.convolutions.unreached_taps import drop_unreached_taps
from tuner.engines.relax.graph.passes.half_precision import compute_in_float32, sum_in_float32
from tuner.engines.relax.graph.passes.normalisations import find_normalisations
from tuner.engines.relax.graph.passes.powers import simplify_powers
from tuner.engines.relax.graph.passes.products.cached_products import read_caches_as_stored
from tuner.engines.relax.graph.passes.products.dot_products import pack_integer_products
from tuner.engines.relax.graph.passes.products.integer_products import find_integer_products
from tuner.engines.relax.graph.passes.products.parallel_products import merge_products
from tuner.engines.relax.graph.passes.products.scaled_products import fold_factors
from tuner.engines.relax.graph.passes.products.weight_products import pack_weights
from tuner.engines.relax.graph.passes.reshapes import sink_reshapes
from tuner.engines.relax.schedules.cpu import attention
from tuner.engines.relax.schedules.cpu.attention import is_worthwhile
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import registers_of
from tuner.engines.relax.target.kinds import is_cpu
from tuner.engines.relax.triton import variants as triton
from tuner.engines.relax.triton.compilation import compiler
from tuner.errors import ModelError, described


@dataclass(frozen=True)
class LoweredNetwork:
    """A module whose ``main`` calls one fused kernel per subgraph, with notes on its rewrites."""

    module: tvm.IRModule
    notes: tuple[str, ...]


def lower(model: ModelFile, target: Target, *, is_whole: bool = False) -> LoweredNetwork:
    """Import, clean, lay out and fuse a model; recent results are kept for the link that follows.

    Args:
        model: Cleaned model.
        target: Target of its kernels.
        is_whole: True for a module that TVM can compile as a whole: its recurrent layers are not
            loops, which call kernels that are linked later.

    Raises:
        ModelError: If an operator cannot be imported, lowered or linked.
    """
    stat = Path(model.path).stat()
    file = (model.path, stat.st_mtime_ns, stat.st_size)
    key = (file, tuple(model.inputs.items()), str(target), is_whole)
    if key not in _lowered:
        while len(_lowered) >= _MAX_LOWERED:
            del _lowered[next(iter(_lowered))]
        with described(lowering_failure):
            _lowered[key] = _lower(model, target, is_whole)
    return _lowered[key]


# Lowered networks include their weights; two suffice to link a network after its extraction.
_MAX_LOWERED = 2
_lowered: dict[Any, LoweredNetwork] = {}


def lowering_failure(reason: str) -> ModelError:
    """Return the error for an unexpected one of TVM, by its :func:`plain_reason`."""
    return ModelError(
        f"the network cannot be lowered to kernels{reason}; report it with the model",
        code="not-lowered",
    )


def _lower(model: ModelFile, target: Target, is_whole: bool) -> LoweredNetwork:
    transform = relax.transform
    with nullcontext() if is_whole else target:
        imported = guard_kernels(import_model(model))
    if is_cpu(target):
        imported = compute_in_float32(imported)
    module = _sequence(
        imported,
        transform.FoldBatchnormToConv2D(),
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
    )
    module = fold_constants(module)
    if dot_instruction(target) is not None:
        module = find_integer_products(module)
    module = replace_transposed_convolutions(module)
    module = find_normalisations(simplify_powers(drop_unreached_taps(module)))
    module = fold_affine(module)
    module = split_sparse_windows(flatten_windows(module))
    module = fold_constants(assign_layouts(module))
    if is_cpu(target):
        module = read_caches_as_stored(module)
    module = merge_products(fold_factors(sink_reshapes(split_scatters(module))))
    if is_cpu(target):
        module = pad_channels(split_concatenations(module), registers_of(target))
        module = pack_integer_products(module, dot_instruction(target))
        module = sum_in_float32(pack_weights(module))
        module = _fuse_attention(
            module,
            target,
            _Attention(is_worthwhile, lambda kernel: attention.has_schedule(Schedule(kernel))),
        )
        # The search chooses how weights are packed; the build packs them the same way.
        with target:
            module = transform.AttachAttrLayoutFreeBuffers()(module)
    else:
        arch = str(target.attrs["arch"])
        has_triton = compiler.supports(arch)
        if has_triton:
            module = pack_weights(module, is_for_gpu=True)
        module = sum_in_float32(module)
        if has_triton:
            fits = partial(triton.fits, architecture=compiler.number_of(arch))
            kinds = _Attention(lambda *_: True, fits, is_for_gpu=True)
            module = _fuse_attention(module, target, kinds)
        else:
            module = _fuse(module, target)
    module = normalise_kernels(module)
    check_linkable(module)
    return LoweredNetwork(module, ())


def _fuse(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Lower operators to kernels, and fuse them."""
    transform = relax.transform
    with target:
        module = _sequence(
            module,
            transform.FoldConstant(),
            transform.LegalizeOps(
                {
                    "relax.cumsum": legalise_cumsum,
                    "relax.nn.pad": legalise_pad,
                    "relax.strided_slice": legalise_slice,
                    **COMPARISONS,
                    **DEFINITIONS,
                    **SCATTERS,
                    **(
                        {**LEGALIZATIONS, **CPU_DEFINITIONS}
                        if is_cpu(target)
                        else GPU_LEGALIZATIONS
                    ),
                }
            ),
            # Sorts have no legalisation; they call TVM's runtime.
            DispatchSortScan(),
        )
        module = _sequence(
            guard_kernels(module), transform.AnnotateTIROpPattern(), transform.FoldConstant()
        )
        return _sequence(seal_regions(module), transform.FuseOps(), transform.FuseTIR())


@dataclass(frozen=True)
class _Attention:
    """The attention that is one kernel on a kind of target.

    Attributes:
        fits: Returns whether one kernel is faster; see :func:`outline_attention`.
        has_schedule: Returns whether a kernel has a schedule.
        is_for_gpu: True for GPUs; see :func:`outline_attention`.
    """

    fits: Fits
    has_schedule: Callable[[Any], bool]
    is_for_gpu: bool = False


def _fuse_attention(module: tvm.IRModule, target: Target, kinds: _Attention) -> tvm.IRModule:
    """Lower operators to kernels: one for each region that has a schedule, several for others.

    Without a schedule, one kernel is slower than several.
    """
    outline = partial(outline_attention, is_for_gpu=kinds.is_for_gpu)
    outlined, results = outline(module, kinds.fits)
    whole = _fuse(outlined, target)
    kernels = normalise_kernels(whole)
    unscheduled = [name for name in results if not kinds.has_schedule(kernels[name])]
    apart = [call for name in unscheduled for call in results[name]]
    if not apart:
        return whole
    outlined, _ = outline(module, kinds.fits, apart)
    return _fuse(outlined, target)


def _sequence(module: tvm.IRModule, *passes: tvm.transform.Pass) -> tvm.IRModule:
    return tvm.transform.Sequential(passes)(module)

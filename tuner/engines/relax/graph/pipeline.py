"""The passes of a network, from the imported model to fused, unscheduled kernels."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.target import Target

from tuner.engines.base import ModelFile
from tuner.engines.relax.codegen.cpu.dot_instructions import dot_instruction
from tuner.engines.relax.graph.definitions.guards import guard_kernels
from tuner.engines.relax.graph.definitions.opaque_kernels import normalise_kernels
from tuner.engines.relax.graph.definitions.scatters import ScatterSplitter
from tuner.engines.relax.graph.fold import fold_constants
from tuner.engines.relax.graph.fusion import fuse
from tuner.engines.relax.graph.layout.assignment import assign_layouts
from tuner.engines.relax.graph.linkable import check_linkable
from tuner.engines.relax.graph.passes.convolutions.affine import AffineFolder
from tuner.engines.relax.graph.passes.convolutions.concat import ConcatenationSplitter
from tuner.engines.relax.graph.passes.convolutions.padding import pad_channels
from tuner.engines.relax.graph.passes.convolutions.transposed_convolutions import (
    TransposedConvolutionReplacer,
)
from tuner.engines.relax.graph.passes.convolutions.windows import (
    SparseWindowSplitter,
    TapCutter,
    WindowFlattener,
)
from tuner.engines.relax.graph.passes.half_precision import SumWidener, compute_in_float32
from tuner.engines.relax.graph.passes.masked_softmax import MaskedSoftmaxFinder
from tuner.engines.relax.graph.passes.normalisations import NormalisationFinder
from tuner.engines.relax.graph.passes.powers import PowerSimplifier
from tuner.engines.relax.graph.passes.products.cached_products import CacheReader
from tuner.engines.relax.graph.passes.products.dot_products import pack_integer_products
from tuner.engines.relax.graph.passes.products.integer_products import IntegerProductFinder
from tuner.engines.relax.graph.passes.products.parallel_products import FactorFolder, ProductMerger
from tuner.engines.relax.graph.passes.products.weight_products import pack_weights
from tuner.engines.relax.graph.passes.reshapes import sink_reshapes
from tuner.engines.relax.graph.passes.visitor import CallVisitor
from tuner.engines.relax.graph.side_branches import inline_side_branches
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import registers_of
from tuner.engines.relax.target.kinds import is_cpu
from tuner.engines.relax.triton.compilation import compiler
from tuner.errors import ModelError, described

Rewrite = Callable[[tvm.IRModule, Target], tvm.IRModule]
IsFor = Callable[[Target], bool]


def _everywhere(_: Target) -> bool:
    return True


def _has_triton(target: Target) -> bool:
    return not is_cpu(target) and compiler.supports(str(target.attrs["arch"]))


def _plain(rewrite: Callable[[tvm.IRModule], tvm.IRModule]) -> Rewrite:
    """Return a rewrite that does not depend on the target in the form of those that do."""
    return lambda module, _: rewrite(module)


def _by(visitor: Callable[[tvm.IRModule], CallVisitor]) -> Rewrite:
    """Return the rewrite of a visitor."""
    return lambda module, _: visitor(module).run(module)


_TVM_CLEANING = tvm.transform.Sequential(
    [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
    ]
)

#: What happens to an imported network before its operators are fused: the rewrites in their order,
#: each with the targets that it is for. The comments say what a rewrite matches, and why it pays.
PASSES: tuple[tuple[Rewrite, IsFor], ...] = (
    # Half precision: CPUs have no such arithmetic, and would convert at every operator.
    (_plain(compute_in_float32), is_cpu),
    # Batch norms behind convolutions, dropout: they cost nothing once folded.
    (_plain(_TVM_CLEANING), _everywhere),
    # Operators on constants are computed once, permutations that cancel are dropped.
    (_plain(fold_constants), _everywhere),
    # Products of dequantised numbers: bytes are a quarter of the traffic, and dot instructions
    # or tensor cores add several products at once.
    (_by(IntegerProductFinder), lambda target: dot_instruction(target) is not None),
    (_by(partial(IntegerProductFinder, is_for_gpu=True)), _has_triton),
    # Transposed convolutions multiply mostly zeros; as convolutions to more channels, none.
    (_by(TransposedConvolutionReplacer), _everywhere),
    # Taps of windows that read padding at every position, as in dilated heads.
    (_by(TapCutter), _everywhere),
    # Constant powers cost a logarithm and an exponential for each element.
    (_by(PowerSimplifier), _everywhere),
    # Norms that a model spells as arithmetic: one kernel instead of half a dozen.
    (_by(NormalisationFinder), _everywhere),
    # Softmax with a number in masked rows: one kernel instead of five, and attention is one.
    (_by(MaskedSoftmaxFinder), _everywhere),
    # Scales and shifts behind a convolution become part of its weights and bias.
    (_by(AffineFolder), _everywhere),
    # Convolutions of videos with flat windows: schedules know those of images.
    (_by(WindowFlattener), _everywhere),
    # Dilated convolutions whose taps mostly read padding: a sum of few products.
    (_by(SparseWindowSplitter), _everywhere),
    # Channels last between convolutions: vectors along channels, and no transposes.
    (_plain(assign_layouts), _everywhere),
    # Layouts of weights are constants, too.
    (_plain(fold_constants), _everywhere),
    # Keys and values in a decoder's cache: read as stored instead of repeated or transposed.
    (_by(CacheReader), is_cpu),
    # Scatters with constant indices write only the part that they cover.
    (_by(ScatterSplitter), _everywhere),
    # Reshapes between operators keep these from being one kernel.
    (_plain(sink_reshapes), _everywhere),
    # Constant factors of products, such as that of attention, become part of the weights.
    (_by(FactorFolder), _everywhere),
    # Queries, keys and values: one product of the same rows instead of three.
    (_by(ProductMerger), _everywhere),
    # Convolutions of a concatenation: a sum of convolutions that needs no copy. On GPUs SqueezeNet
    # has 35 kernels with it and 40 without, which take as long by estimate, and Inception has more.
    (_by(ConcatenationSplitter), is_cpu),
    # Output channels that fill no whole vectors.
    (lambda module, target: pad_channels(module, registers_of(target)), is_cpu),
    # Products of bytes: weights packed as the instruction reads them.
    (lambda module, target: pack_integer_products(module, dot_instruction(target)), is_cpu),
    # Products of floats with weights of few bits: memory reads the bits, not floats.
    (_plain(pack_weights), is_cpu),
    (lambda module, _: pack_weights(module, is_for_gpu=True), _has_triton),
    # Sums in half precision would lose digits, and verification would have no bound.
    (_by(SumWidener), _everywhere),
)


def lower(model: ModelFile, target: Target, *, is_whole: bool = False) -> tvm.IRModule:
    """Import, clean, lay out and fuse a model: ``main`` calls one kernel per subgraph.

    Recent results are kept for the link that follows.

    Args:
        model: Cleaned model.
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
            with nullcontext() if is_whole else target:
                module = guard_kernels(import_model(model))
            for rewrite, is_for in PASSES:
                if is_for(target):
                    module = rewrite(module, target)
            module = fuse(module, target)
            if is_cpu(target):
                # The search chooses how weights are packed; the build packs them the same way.
                with target:
                    module = relax.transform.AttachAttrLayoutFreeBuffers()(module)
            module = normalise_kernels(module)
            if is_cpu(target):
                module = inline_side_branches(module)
            check_linkable(module)
            _lowered[key] = module
    return _lowered[key]


# Lowered networks include their weights; two suffice to link a network after its extraction.
_MAX_LOWERED = 2
_lowered: dict[Any, tvm.IRModule] = {}


def lowering_failure(reason: str) -> ModelError:
    """Return the error for an unexpected one of TVM, by its :func:`plain_reason`."""
    return ModelError(
        f"the network cannot be lowered to kernels{reason}; report it with the model",
        code="not-lowered",
    )


def import_model(model: ModelFile) -> tvm.IRModule:
    """Import a cleaned model.

    Raises:
        ModelError: If the importer does not support it; the message names the operator.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if model.format == "onnx":
            import onnx

            from tuner.engines.relax.frontend.onnx_graph import import_graph

            return import_graph(onnx.load_from_string(Path(model.path).read_bytes()))
        from tuner.engines.relax.frontend.torch_program import import_program

        return import_program(model)

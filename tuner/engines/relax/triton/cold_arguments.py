"""Arguments of kernels for GPUs that no kernel has used for as long as an inference takes.

A network reads its weights and the caches that a caller keeps once an inference. If they do not fit
the second-level cache, kernels find them in memory, and are timed so.
"""

import math
from collections.abc import Iterator
from typing import Any

from tvm.tirx import PrimFunc

from tuner.engines.relax.triton import variants
from tuner.engines.relax.triton.expressions.kernel_blocks import KernelBlocks, buffers_of, key
from tuner.engines.relax.triton.templates.contractions import Contraction, factors_of

# Keys for each query from which on they come from a cache.
_CACHED_KEYS = 8


def cold_arguments(function: PrimFunc) -> list[int]:
    """Return the indices of the arguments of a workload that come from memory.

    These are what the second operand of a product without batches reads, and the keys and values of
    an attention with few queries, but for new ones.
    """
    n_least, product = 0, variants.GEMM.find(function)
    if product is not None:
        second = [each for each, _ in product.products if each.n_batches == 1]
    else:
        attention = variants.ATTENTION.find(function)
        if attention is None or attention.scores.n_columns < _CACHED_KEYS * attention.scores.n_rows:
            return []
        second = [attention.scores, attention.context]
        n_least = attention.scores.n_columns * attention.n_terms
    blocks = KernelBlocks.of(function)
    assert blocks is not None  # a template has matched them
    sizes = [math.prod(int(size) for size in param.shape) for param in function.params]
    places = {key(parameter): place for place, parameter in enumerate(function.params)}
    read = {place for each in second for place in _arguments(blocks, each, places)}
    return sorted(place for place in read if sizes[place] >= n_least)


def _arguments(blocks: KernelBlocks, product: Contraction, places: dict[int, int]) -> Iterator[int]:
    """Yield the places of the arguments that the second operand of a product follows from."""
    factors = factors_of(product.block)
    left: list[Any] = [] if factors is None else buffers_of(factors[1])
    while left:
        buffer = key(left.pop())
        if buffer in blocks.blocks:
            left += buffers_of(blocks.blocks[buffer].value)
        elif buffer in places:
            yield places[buffer]

"""Converter for attention of torch, which keeps operands of half precision as they are.

torch's own decomposition converts them to float32, and tests every score for masked rows.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tvm import relax

from tuner.engines.relax.frontend.converters.torch.torch_functions import dtype_of
from tuner.engines.relax.graph.passes.masked_softmax import Fill, masked_softmax
from tuner.engines.relax.ir.tensor_types import shape_of

_WIDE = "float32"


def _convert_attention(node: Any, importer: Any) -> relax.Expr:
    """Convert an attention; scores and their softmax are float32, as in torch's kernels.

    Raises:
        NotImplementedError: If it drops scores at random, or has another type.
    """
    emit, dtype = importer.block_builder.emit, dtype_of(node)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if given.get("dropout_p") or dtype not in ("float16", "bfloat16", _WIDE):
        raise NotImplementedError("dropout, or attention of other types")
    query, key, value = (importer.env[given[name]] for name in names[:3])
    n_rows, n_terms = shape_of(query)[-2:]
    if given.get("enable_gqa", False):
        key, value = (_repeated(each, shape_of(query)[-3], emit) for each in (key, value))
    axes = [*range(len(shape_of(key)))]
    keys = emit(relax.op.permute_dims(key, [*axes[:-2], axes[-1], axes[-2]]))
    scores = emit(relax.op.matmul(query, keys, out_dtype=_WIDE))
    scale = given.get("scale")
    factor = 1.0 / math.sqrt(n_terms) if scale is None else float(scale)
    scores = emit(scores * relax.const(factor, _WIDE))
    if given.get("is_causal", False):
        hidden = np.triu(np.full((n_rows, shape_of(key)[-2]), -np.inf, _WIDE), 1)
        scores = emit(scores + relax.const(hidden))
    if (mask := given.get("attn_mask")) is not None:
        scores = emit(scores + _summand(mask, importer))
    weights = emit(masked_softmax(scores, Fill(0.0, replaces_nan=False)))
    if dtype != _WIDE:
        weights = emit(relax.op.astype(weights, dtype))
    return emit(relax.op.matmul(weights, value, out_dtype=dtype))


def _repeated(heads: relax.Expr, n_heads: int, emit: Callable[[relax.Expr], Any]) -> relax.Expr:
    """Return keys or values with a head for each head of the queries."""
    *outer, n_shared, n_keys, width = shape_of(heads)
    shape = [*outer, n_shared, n_heads // n_shared, n_keys, width]
    wide = emit(relax.op.broadcast_to(emit(relax.op.expand_dims(heads, -3)), shape))
    return emit(relax.op.reshape(wide, [*outer, n_heads, n_keys, width]))


def _summand(mask: Any, importer: Any) -> relax.Expr:
    """Return what a mask adds to scores; minus infinity where it is false."""
    emit, value = importer.block_builder.emit, importer.env[mask]
    if mask.meta["val"].dtype == torch.bool:
        shown, hidden = relax.const(0.0, _WIDE), relax.const(-math.inf, _WIDE)
        return emit(relax.op.where(value, shown, hidden))
    return emit(relax.op.astype(value, _WIDE))


#: Converters by name of the operator.
CONVERTERS: dict[str, Callable[[Any, Any], relax.Expr]] = {
    "scaled_dot_product_attention.default": _convert_attention,
}

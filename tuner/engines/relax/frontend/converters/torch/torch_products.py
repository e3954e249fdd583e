"""Converters for products, convolutions, embeddings and attention of torch.

TVM's importer gives products of half precision in float32, to which it adds a bias of half
precision, and which operators behind them do not take.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tvm import relax

from tuner.engines.relax.frontend.converters.torch.torch_functions import dtype_of
from tuner.engines.relax.graph.layout.scope import with_attrs
from tuner.engines.relax.graph.passes.masked_softmax import Fill, masked_softmax
from tuner.engines.relax.ir.tensor_types import shape_of

_WIDE = "float32"
_HALF = (torch.float16, torch.bfloat16)


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
        added = importer.env[mask]
        if mask.meta["val"].dtype == torch.bool:
            shown, hidden = relax.const(0.0, _WIDE), relax.const(-math.inf, _WIDE)
            added = relax.op.where(added, shown, hidden)
        else:
            added = relax.op.astype(added, _WIDE)
        scores = emit(scores + emit(added))
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


def _convert_product(node: Any, importer: Any) -> relax.Expr:
    left, right = importer.retrieve_args(node)
    return importer.block_builder.emit(relax.op.matmul(left, right, out_dtype=dtype_of(node)))


def _convert_sum(node: Any, importer: Any) -> relax.Expr:
    """Convert a product to whose result a bias is added."""
    if node.meta["val"].dtype not in _HALF:
        return importer._addmm(node)
    emit, dtype = importer.block_builder.emit, dtype_of(node)
    bias, left, right = importer.retrieve_args(node)
    product = emit(relax.op.matmul(left, right, out_dtype=dtype))
    terms = []
    for term, name in ((product, "alpha"), (bias, "beta")):
        factor = node.kwargs.get(name, 1)
        terms.append(term if factor == 1 else emit(term * relax.const(factor, dtype)))
    return emit(relax.op.add(*terms))


def _convert_convolution(node: Any, importer: Any) -> relax.Expr:
    if node.meta["val"].dtype not in _HALF:
        return importer._convolution(node)
    builder, (data, weight, bias, *others) = importer.block_builder, node.args
    convolution = importer._convolution(SimpleNamespace(args=(data, weight, None, *others)))
    call = builder.lookup_binding(convolution)
    result = builder.emit(with_attrs(call, call.args, out_dtype=dtype_of(node)))
    if bias is None:
        return result
    shape = (-1, *[1] * (len(node.meta["val"].shape) - 2))
    return builder.emit(result + builder.emit(relax.op.reshape(importer.env[bias], shape)))


def _convert_embedding(node: Any, importer: Any) -> relax.Expr:
    """Convert an embedding; TVM flattens its indices, which then are a kernel of their own."""
    weight, indices = (importer.env[each] for each in node.args[:2])
    return importer.block_builder.emit(relax.op.take(weight, indices, axis=0))


#: Converters by name of the operator.
CONVERTERS: dict[str, Callable[[Any, Any], relax.Expr]] = {
    "addmm.default": _convert_sum,
    "bmm.default": _convert_product,
    "convolution.default": _convert_convolution,
    "embedding.default": _convert_embedding,
    "mm.default": _convert_product,
    "scaled_dot_product_attention.default": _convert_attention,
}

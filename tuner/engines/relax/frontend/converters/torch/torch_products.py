"""Converters for products, convolutions and embeddings of torch.

TVM's importer gives products of half precision in float32, to which it adds a bias of half
precision, and which operators behind them do not take.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tvm import relax

from tuner.engines.relax.frontend.converters.torch.torch_functions import dtype_of
from tuner.engines.relax.graph.layout.scope import with_attrs

_HALF = (torch.float16, torch.bfloat16)


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
}

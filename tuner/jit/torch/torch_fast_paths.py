"""Plain operators in the place of the fused layer that torch calls for inference."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional


def without_fast_paths(graph: fx.GraphModule) -> fx.GraphModule:
    """Return a graph without fused encoder layers, which importers do not know."""
    fused = torch._transformer_encoder_layer_fwd
    if not graph.graph.find_nodes(op="call_function", target=fused):
        return graph
    plain = fx.Graph()
    plain.output(plain.graph_copy(graph.graph, {}))
    for node in plain.find_nodes(op="call_function", target=fused):
        node.target = _encoder_layer
    return fx.GraphModule(graph, plain)


def _encoder_layer(x: Any, width: int, n_heads: int, *rest: Any) -> Any:
    """Compute ``torch._transformer_encoder_layer_fwd``, whose arguments these are."""
    (weight, bias, out_weight, out_bias, use_gelu, norm_first, eps), rest = rest[:7], rest[7:]
    norms, (weight_1, bias_1, weight_2, bias_2), masks = (rest[:2], rest[2:4]), rest[4:8], rest[8:]

    def attend(x: Any) -> Any:
        parts = functional.linear(x, weight, bias).unflatten(-1, (3, n_heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        heads = functional.scaled_dot_product_attention(q, k, v, attn_mask=_added(masks, q.dtype))
        return functional.linear(heads.transpose(1, 2).flatten(2), out_weight, out_bias)

    def feed(x: Any) -> Any:
        hidden = functional.linear(x, weight_1, bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, weight_2, bias_2)

    for part, (scale, shift) in zip((attend, feed), norms, strict=True):
        if norm_first:
            x = x + part(functional.layer_norm(x, (width,), scale, shift, eps))
        else:
            x = functional.layer_norm(x + part(x), (width,), scale, shift, eps)
    return x


def _added(masks: Sequence[Any], dtype: torch.dtype) -> Any:
    """Return what a mask and its type add to scores of (rows, heads, queries, keys)."""
    if not masks or masks[0] is None:
        return None
    mask, kind = masks
    if kind == 1:
        # Of the keys of each row.
        mask = mask[:, None, None, :]
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
    return mask

"""Replacement of ONNX Runtime's fused attention by the operators of the standard.

Shapes in the docstrings: B batch, N heads, S queries, P keys of the past, T keys, D elements of a
head, H = N * D.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from onnx import TensorProto

from tuner.networks.onnx.contrib.key_cache import find_cache
from tuner.networks.onnx.node_builder import Replacement, UnknownValueError


@dataclass(frozen=True)
class _Heads:
    """Operands of an attention, each (B, heads, length, D), with the sizes that they have.

    Attributes:
        past: Number of keys before the first query.
    """

    query: str
    key: str
    value: str
    n_batches: int
    n_queries: int
    n_keys: int
    past: int
    size: int


def replace_attention(b: Replacement) -> None:
    """Replace Attention: projections of one input, and attention among them."""
    _refuse(b, "do_rotary", "past_present_share_buffer")
    n_batches, n_queries, _ = b.shape(b.input(0))
    total = b.shape(b.input(1))[1]
    sizes = list(b.attribute("qkv_hidden_sizes", [total // 3] * 3))
    n_heads = _n_heads(b, "num_heads", *sizes)
    if b.input(6) or sizes[0] != sizes[1]:
        raise UnknownValueError
    projected = b.add("MatMul", b.input(0), b.input(1))
    if b.input(2):
        projected = b.add("Add", projected, b.input(2))
    query, key, value = _split(b, projected, sizes)
    query, key, value = (
        split_heads(b, each, n_batches, n_queries, n_heads) for each in (query, key, value)
    )
    past = b.shape(b.input(4))[3] if b.input(4) else 0
    if past:
        before = [b.add("Gather", b.input(4), b.constant(np.array(i)), axis=0) for i in (0, 1)]
        key, value = (
            b.add("Concat", old, new, axis=2) for old, new in zip(before, (key, value), strict=True)
        )
    if _output(b, 1):
        parts = [b.unsqueeze(each, 0) for each in (key, value)]
        b.add("Concat", *parts, axis=0, output=_output(b, 1))
    heads = _Heads(
        query, key, value, n_batches, n_queries, past + n_queries, past, sizes[0] // n_heads
    )
    is_causal = _is_set(b, "unidirectional")
    added = [_padding(b, b.input(3), heads), b.input(5), causal(b, heads) if is_causal else ""]
    _attend(b, heads, added)


def replace_multi_head_attention(b: Replacement) -> None:
    """Replace MultiHeadAttention: attention among operands that are projected already."""
    if b.input(8) or b.input(9) or _output(b, 3) or not b.input(1) or not b.input(2):
        raise UnknownValueError
    n_batches, n_queries, hidden = b.shape(b.input(0))
    n_heads = _n_heads(b, "num_heads", hidden)
    operands = [b.input(0), b.input(1), b.input(2)]
    biases = [""] * 3
    if b.input(3):
        width = b.shape(b.input(3))[0]
        biases = _split(b, b.input(3), [hidden, hidden, width - 2 * hidden])
    laid_out = []
    for operand, bias in zip(operands, biases, strict=True):
        shape = b.shape(operand)
        if len(shape) == 4:
            laid_out.append(operand)
            continue
        if len(shape) != 3:
            raise UnknownValueError
        value = b.add("Add", operand, bias) if bias else operand
        laid_out.append(split_heads(b, value, n_batches, shape[1], n_heads))
    query, key, value = laid_out
    n_keys = b.shape(operands[1])[-2]
    past = b.shape(b.input(6))[2] if b.input(6) else 0
    if past:
        if not (_output(b, 1) and _output(b, 2)):
            raise UnknownValueError  # ONNX Runtime then leaves the past out
        key = b.add("Concat", b.input(6), key, axis=2)
        value = b.add("Concat", b.input(7), value, axis=2)
    for index, each in ((1, key), (2, value)):
        if _output(b, index):
            b.add("Identity", each, output=_output(b, index))
    heads = _Heads(query, key, value, n_batches, n_queries, past + n_keys, past, hidden // n_heads)
    is_causal = _is_set(b, "unidirectional")
    if is_causal and n_keys > n_queries:
        raise UnknownValueError  # the operator's text does not say which keys come last
    added = [_padding(b, b.input(4), heads), b.input(5), causal(b, heads) if is_causal else ""]
    _attend(b, heads, added)


def split_heads(b: Replacement, value: str, n_batches: int, length: int, n_heads: int) -> str:
    """Return (B, S, H) as (B, N, S, D)."""
    parts = b.reshape(value, n_batches, length, n_heads, -1)
    return b.add("Transpose", parts, perm=[0, 2, 1, 3])


def causal(b: Replacement, heads: _Heads) -> str:
    """Return what hides the keys behind each query, (S, T)."""
    b.check_table(heads.n_queries, heads.n_keys)
    places = np.arange(heads.n_queries)[:, None] + heads.past
    hidden = np.arange(heads.n_keys)[None] > places
    dtype = b.dtype(b.input(0))
    return b.constant(np.where(hidden, np.finfo(dtype).min, 0).astype(dtype))


def _padding(b: Replacement, mask: str, heads: _Heads) -> str:
    """Return what hides padding: a number for each key, or for each query and key."""
    if not mask:
        return ""
    shape = b.shape(mask)
    if shape in ((heads.n_batches,), (2 * heads.n_batches,)):
        # The end of each sequence; after them, the start of each.
        keys = b.constant(np.arange(heads.n_keys).astype(b.dtype(mask)))
        parts = _split(b, mask, [heads.n_batches] * (shape[0] // heads.n_batches))
        ends, *starts = (b.reshape(each, -1, 1) for each in parts)
        keeps = b.add("Less", keys, ends)
        for each in starts:
            keeps = b.add("And", keeps, b.add("Not", b.add("Less", keys, each)))
        shape = (heads.n_batches, heads.n_keys)
    elif len(shape) in (2, 3) and shape[-1] == heads.n_keys:
        keeps = b.add("Greater", mask, b.constant(np.array(0, b.dtype(mask))))
    else:
        raise UnknownValueError
    dtype, number = b.dtype(b.input(0)), b.attribute("mask_filter_value", -1e4)
    if not np.isfinite(number):
        raise UnknownValueError
    zero, hidden = (b.constant(np.array(each, dtype)) for each in (0, number))
    numbers = b.add("Where", keeps, zero, hidden)
    return b.reshape(numbers, shape[0], 1, *(shape[1:] if len(shape) == 3 else (1, shape[1])))


def _attend(b: Replacement, heads: _Heads, added: list[str]) -> None:
    """Append attention whose scores get some numbers; its output is (B, S, H)."""
    dtype = b.dtype(b.input(0))
    scale = b.attribute("scale", 0.0) or 1 / sqrt(heads.size)
    transposed = b.add("Transpose", heads.key, perm=[0, 1, 3, 2])
    scores = b.add("MatMul", heads.query, transposed)
    scores = b.add("Mul", scores, b.constant(np.array(scale, dtype)))
    cap = b.attribute("softcap", 0.0)
    if cap > 0:
        limit = b.constant(np.array(cap, dtype))
        scores = b.add("Mul", b.add("Tanh", b.add("Div", scores, limit)), limit)
    for each in filter(None, added):
        scores = b.add("Add", scores, each)
    sums = b.add("MatMul", b.add("Softmax", scores, axis=-1), heads.value)
    merged = b.add("Transpose", sums, perm=[0, 2, 1, 3])
    b.reshape(merged, heads.n_batches, heads.n_queries, -1, output=b.node.output[0])


def replace_grouped_attention(b: Replacement) -> None:
    """Replace GroupQueryAttention: groups of heads share keys and values, which a cache may hold.

    New keys stand behind those that a sequence has, which :class:`Cache` finds.
    """
    _refuse(b, "smooth_softmax", "kv_cache_bit_width", "sliding_window_cache", "qk_output")
    if any(b.input(index) for index in range(11, 16)) or _output(b, 3):
        raise UnknownValueError
    n_batches, n_queries, hidden = b.shape(b.input(0))
    n_heads = _n_heads(b, "num_heads")
    n_shared = _n_heads(b, "kv_num_heads", n_heads)
    operands = [b.input(0), b.input(1), b.input(2)]
    size, rest = divmod(hidden, n_heads if b.input(1) else n_heads + 2 * n_shared)
    if rest:
        raise ValueError(f"{hidden} columns, {n_heads} heads and {n_shared} of keys")
    if not b.input(1):
        sizes = [size * n_heads, size * n_shared, size * n_shared]
        operands = _split(b, b.input(0), sizes)
    query, key, value = (
        split_heads(b, each, n_batches, n_queries, n)
        for each, n in zip(operands, (n_heads, n_shared, n_shared), strict=True)
    )
    is_causal = _is_set(b, "causal", 1)
    past = b.shape(b.input(3))[2] if b.input(3) else 0
    cache = find_cache(b, past, n_queries, is_causal=is_causal)
    if _is_set(b, "do_rotary"):
        b.check_table(n_batches, n_queries)
        places = b.input(9) or cache.places(b, n_batches)
        query, key = (
            rotate(b, each, places, b.input(7), b.input(8), _is_set(b, "rotary_interleaved"))
            for each in (query, key)
        )
    if past:
        key, value = (cache.fill(b, b.input(3), key), cache.fill(b, b.input(4), value))
    for index, each in ((1, key), (2, value)):
        if _output(b, index):
            b.add("Identity", each, output=_output(b, index))
    n_keys, group = cache.n_keys, n_heads // n_shared
    if group > 1:
        shape = (n_batches, n_shared, group, n_keys, size)
        key, value = (
            b.reshape(
                b.add("Expand", b.unsqueeze(each, 2), b.constant(np.array(shape))),
                n_batches,
                n_heads,
                n_keys,
                size,
            )
            for each in (key, value)
        )
    heads = _Heads(query, key, value, n_batches, n_queries, n_keys, cache.n_before, size)
    window = int(b.attribute("local_window_size", -1))
    if window != -1 and not 0 < window <= np.iinfo(np.int32).max:
        raise UnknownValueError
    if cache.first:
        _attend(b, heads, [cache.hidden(b, b.dtype(b.input(0)), window), b.input(10)])
        return
    added = [causal(b, heads) if is_causal else "", b.input(10)]
    _attend(b, heads, [*added, _window(b, heads, window) if window > 0 else ""])


def _window(b: Replacement, heads: _Heads, size: int) -> str:
    """Return what hides the keys before the window of each query, (S, T)."""
    b.check_table(heads.n_queries, heads.n_keys)
    places = np.arange(heads.n_queries)[:, None] + heads.past
    hidden = np.arange(heads.n_keys)[None] <= places - size
    dtype = b.dtype(b.input(0))
    return b.constant(np.where(hidden, np.finfo(dtype).min, 0).astype(dtype))


def replace_rotary_embedding(b: Replacement) -> None:
    """Replace RotaryEmbedding, which rotates pairs of elements by an angle for each place."""
    _refuse(b, "is_packed_batching")
    shape = b.shape(b.input(0))
    caches = b.input(2), b.input(3)
    width = 2 * b.shape(caches[0])[1]
    rank, value = len(shape), b.input(0)
    length = shape[-2] if rank == 4 else shape[1]
    if rank == 3:
        n_heads = shape[2] // width
        if b.attribute("num_heads", 0):
            n_heads = _n_heads(b, "num_heads", shape[2])
        value = split_heads(b, value, shape[0], length, n_heads)
    places = b.input(1)
    if b.shape(places) != (shape[0], length):
        places = b.add("Add", b.reshape(places, 1, 1), b.constant(np.arange(length)[None]))
    rotated = rotate(b, value, places, *caches, _is_set(b, "interleaved"))
    if rank == 3:
        merged = b.add("Transpose", rotated, perm=[0, 2, 1, 3])
        b.reshape(merged, *shape, output=b.node.output[0])
    else:
        b.add("Identity", rotated, output=b.node.output[0])


def rotate(
    b: Replacement, value: str, places: str, cosines: str, sines: str, interleaved: bool
) -> str:
    """Return (B, N, S, D) with the first elements of each head rotated.

    Args:
        b: Builder.
        places: Rows of the tables, (B, S).
        cosines: Table, (places, half of the rotated elements).
        sines: Likewise.
        interleaved: True if the elements of a pair are neighbours, False if they are in two halves.
    """
    half = b.shape(cosines)[1]
    cosine, sine = (
        b.unsqueeze(b.add("Gather", each, places, axis=0), 1) for each in (cosines, sines)
    )
    starts = (0, 1) if interleaved else (0, half)
    step, width = (2, 2 * half) if interleaved else (1, half)
    first, second = (
        _slice(b, value, start, width if interleaved else start + width, step) for start in starts
    )
    turned = [
        b.add("Sub", b.add("Mul", first, cosine), b.add("Mul", second, sine)),
        b.add("Add", b.add("Mul", second, cosine), b.add("Mul", first, sine)),
    ]
    if interleaved:
        pairs = b.add("Concat", *(b.unsqueeze(each, -1) for each in turned), axis=-1)
        turned = [b.reshape(pairs, 0, 0, 0, 2 * half)]
    rest = _slice(b, value, 2 * half, np.iinfo(np.int64).max, 1)
    return b.add("Concat", *turned, rest, axis=-1)


def _slice(b: Replacement, value: str, start: int, end: int, step: int) -> str:
    bounds = [b.constant(np.array([each])) for each in (start, end, -1, step)]
    return b.add("Slice", value, *bounds)


def _split(b: Replacement, value: str, sizes: list[int]) -> list[str]:
    """Return parts of the last axis."""
    ends = np.cumsum(sizes)
    return [
        _slice(b, value, int(end - size), int(end), 1)
        for end, size in zip(ends, sizes, strict=True)
    ]


def replace_embed_layer_norm(b: Replacement) -> str:
    """Append the sum of embeddings and the mask index of EmbedLayerNormalization.

    Returns:
        The sum, which the operator normalises.
    """
    n_batches, length = b.shape(b.input(0))
    total = b.add("Gather", b.input(2), b.input(0), axis=0)
    places = b.input(8) or b.constant(np.arange(length)[None])
    total = b.add("Add", total, b.add("Gather", b.input(3), places, axis=0))
    if b.input(4):
        total = b.add("Add", total, b.add("Gather", b.input(4), b.input(1), axis=0))
    if _output(b, 1):
        counts = b.constant(np.zeros(n_batches, np.int32))
        if b.input(7):
            wide = b.add("Cast", b.input(7), to=TensorProto.INT32)
            sums = b.reduce("ReduceSum", wide, 1)
            counts = b.reshape(sums, n_batches)
        b.add("Identity", counts, output=_output(b, 1))
    return total


def _output(b: Replacement, index: int) -> str:
    return b.node.output[index] if index < len(b.node.output) else ""


def _n_heads(b: Replacement, name: str, *sizes: int) -> int:
    """Return a number of heads that divides some sizes.

    Raises:
        ValueError: If it does not.
    """
    n_heads = int(b.attribute(name, 0))
    if n_heads < 1 or any(size % n_heads for size in sizes):
        raise ValueError(f"{name} is {n_heads}, and sizes are {sizes}")
    return n_heads


def _is_set(b: Replacement, flag: str, default: int = 0) -> bool:
    """Return a flag, which ONNX Runtime takes to be set by no other number than 1."""
    return bool(b.attribute(flag, default) == 1)


def _refuse(b: Replacement, *flags: str) -> None:
    """Leave a node with one of some flags as it is."""
    if any(b.attribute(flag, 0) > 0 for flag in flags):
        raise UnknownValueError

"""Places of new keys in the cache of GroupQueryAttention, whose sequences have own lengths.

Shapes in the docstrings: B batch, N heads, S queries, P keys of the cache before, T after, D
elements of a head.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from tuner.networks.onnx.graph import Array
from tuner.networks.onnx.node_builder import Replacement, UnknownValueError


@dataclass(frozen=True)
class Cache:
    """The cache that an attention fills.

    Attributes:
        n_queries: Number of new keys.
        n_keys: Number of keys after them, T.
        n_before: Keys before the new ones, where they are the same number in every run.
        first: Their number in each sequence, (B, 1, 1, 1); empty where it is ``n_before``.
    """

    n_queries: int
    n_keys: int
    n_before: int
    first: str = ""

    def places(self, b: Replacement, n_batches: int) -> str:
        """Return the place of each new key, (B, S)."""
        steps = np.arange(self.n_queries)
        if not self.first:
            return b.constant(np.tile(steps + self.n_before, (n_batches, 1)))
        return b.add("Add", b.reshape(self.first, -1, 1), b.constant(steps))

    def fill(self, b: Replacement, past: str, new: str) -> str:
        """Return the cache (B, N, T, D) with new keys, of one (B, N, P, D) and them, (B, N, S, D).

        What is behind the new keys is zero, as ONNX Runtime returns it.
        """
        n_batches, n_heads, n_past, size = b.shape(past)
        if not self.first:
            n_left = self.n_keys - self.n_before - self.n_queries
            before = _rows(b, past, self.n_before) if self.n_before < n_past else past
            after = _zeros(b, n_batches, n_heads, n_left, size) if n_left else ""
            parts = [each for each in (before if self.n_before else "", new, after) if each]
            return b.add("Concat", *parts, axis=2)
        if n_past < self.n_keys:
            rest = _zeros(b, n_batches, n_heads, self.n_keys - n_past, size)
            past = b.add("Concat", past, rest, axis=2)
        keys = b.constant(np.arange(self.n_keys).reshape(-1, 1))
        step = b.add("Sub", keys, self.first)
        first, last = (b.constant(np.array(each)) for each in (0, self.n_queries - 1))
        nearest = _clip(b, step, first, last)
        is_new = b.add("Equal", step, nearest)
        is_old = b.add("Less", step, first)
        past = b.add("Where", is_old, past, b.constant(np.zeros((), b.dtype(b.input(0)))))
        if self.n_queries > 1:
            shape = (n_batches, n_heads, self.n_keys, size)
            b.check_table(*shape)
            rows = b.add("Expand", nearest, b.constant(np.array(shape)))
            new = b.add("GatherElements", new, rows, axis=2)
        return b.add("Where", is_new, new, past)

    def hidden(self, b: Replacement, dtype: np.dtype[np.floating[Any]], window: int) -> str:
        """Return what hides the keys behind each query, and before its window: (B, 1, S, T)."""
        b.check_table(self.n_queries, self.n_keys)
        # Places of the keys behind that of the first query.
        keys = np.arange(self.n_keys)[None] - np.arange(self.n_queries)[:, None]
        distance = b.add("Sub", b.constant(keys), self.first)
        zero, least = (b.constant(np.array(each, dtype)) for each in (0, np.finfo(dtype).min))
        is_hidden = b.add("Greater", distance, b.constant(np.array(0)))
        if window > 0:
            is_early = b.add("Less", distance, b.constant(np.array(1 - window)))
            is_hidden = b.add("Or", is_hidden, is_early)
        return b.add("Where", is_hidden, least, zero)


def find_cache(b: Replacement, past: int, n_queries: int, *, is_causal: bool) -> Cache:
    """Return where the new keys stand: behind the sequence's own length, an input of the operator.

    Args:
        b: Builder of a GroupQueryAttention.
        past: Length of the cache before, P.
        n_queries: Number of new keys, S.
        is_causal: True if keys behind a query are hidden.

    Raises:
        UnknownValueError: If this function cannot express what ONNX Runtime computes.
    """
    given = b.array(6)
    if given is None or given.size != 1:
        raise UnknownValueError
    total = int(given.reshape(-1)[0])
    n_keys = max(past, total)
    if total < n_queries:
        raise UnknownValueError
    if total == n_queries and is_causal:
        # A prompt, which begins the sequence; what is behind its end is hidden from what is not.
        return Cache(n_queries, n_keys, 0)
    lengths = _constant(b, 5)
    if lengths is not None and (lengths == total - 1).all():
        if total - n_queries > past or not (is_causal or n_keys == total):
            raise UnknownValueError
        return Cache(n_queries, n_keys, total - n_queries)
    if not is_causal or not past:
        raise UnknownValueError
    wide = b.reshape(b.add("Cast", b.input(5), to=TensorProto.INT64), -1, 1, 1, 1)
    before = b.add("Sub", wide, b.constant(np.array(n_queries - 1)))
    bounds = (b.constant(np.array(each)) for each in (0, n_keys - n_queries))
    # ONNX Runtime refuses other lengths, which would be places outside of the cache here.
    return Cache(n_queries, n_keys, 0, _clip(b, before, *bounds))


def _constant(b: Replacement, index: int) -> Array | None:
    try:
        return b.array(index)
    except UnknownValueError:
        return None


def _clip(b: Replacement, value: str, low: str, high: str) -> str:
    """Return whole numbers within two bounds; before opset 12, Min and Max have only floats."""
    raised = b.add("Where", b.add("Less", value, low), low, value)
    return b.add("Where", b.add("Less", high, raised), high, raised)


def _rows(b: Replacement, value: str, n: int) -> str:
    """Return the first keys of a cache."""
    return b.add("Slice", value, *(b.constant(np.array([each])) for each in (0, n, 2)))


def _zeros(b: Replacement, *shape: int) -> str:
    b.check_table(*shape)
    return b.constant(np.zeros(shape, b.dtype(b.input(0))))

"""Replacement of weights with a scale for each block, which few importers know.

Each block becomes a row of a matrix with a scale for each row, which is reshaped afterwards.
Numbers of fewer than 8 bits become bytes; engines pack them again.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto

from tuner.networks.onnx.contrib.quantised_builder import QuantisedBuilder
from tuner.networks.onnx.graph import Array, attribute

_FEW_BITS = frozenset(
    getattr(TensorProto, name)
    for name in ("INT4", "UINT4", "INT2", "UINT2")
    if hasattr(TensorProto, name)
)
_SIGNED = frozenset(
    getattr(TensorProto, name) for name in ("INT8", "INT4", "INT2") if hasattr(TensorProto, name)
)
_BYTES = _FEW_BITS | {TensorProto.INT8, TensorProto.UINT8}
_BITS = (2, 4, 8)
_NARROW_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def is_blocked(node: onnx.NodeProto, kinds: Mapping[str, int]) -> bool:
    """Return whether a node dequantises blocks, or numbers of fewer than 8 bits.

    Args:
        node: Node of any operator.
        kinds: Element type of initialisers by name.
    """
    if node.op_type != "DequantizeLinear":
        return False
    return bool(attribute(node, "block_size", 0)) or kinds.get(node.input[0]) in _FEW_BITS


def replace_dequantisation(b: QuantisedBuilder) -> None:
    """Replace a DequantizeLinear of constants; others stay."""
    codes, scales, zeros = b.array(0), b.array(1), b.array(2)
    if codes is None or scales is None or (b.input(2) and zeros is None):
        return
    kind = b.kind_of(b.input(0))
    if kind in _BYTES:
        codes = codes.astype(np.int8 if kind in _SIGNED else np.uint8)
    zeros = (np.zeros(scales.shape) if zeros is None else zeros).astype(codes.dtype)
    axis, block = attribute(b.node, "axis", 1), attribute(b.node, "block_size", 0)
    output = b.node.output[0]
    if not block:
        inputs = [b.constant(codes), b.input(1), b.constant(zeros)]
        b.add("DequantizeLinear", *inputs, axis=axis, output=output)
        return
    codes, scales, zeros = (np.moveaxis(each, axis, -1) for each in (codes, scales, zeros))
    value = _dequantised(b, codes, scales, zeros, block)
    order = [*range(codes.ndim - 1)]
    order.insert(axis % codes.ndim, codes.ndim - 1)
    b.add("Transpose", value, perm=order, output=output)


def replace_product(b: QuantisedBuilder) -> None:
    """Replace a MatMulNBits with constant weights by a product; others stay."""
    packed, scales, zeros, groups = (b.array(index) for index in (1, 2, 3, 4))
    bits = attribute(b.node, "bits", 4)
    if packed is None or scales is None or bits not in _BITS:
        return
    if any(b.input(index) and value is None for index, value in ((3, zeros), (4, groups))):
        return
    n_columns, n_terms, block = (attribute(b.node, name) for name in ("N", "K", "block_size"))
    n_blocks = -(-n_terms // block)
    scales = scales.reshape(n_columns, n_blocks).astype(np.float32)
    if zeros is None:
        zeros = np.full(scales.shape, 1 << (bits - 1), np.uint8)
    elif zeros.dtype == np.uint8:
        zeros = _unpacked(zeros.reshape(n_columns, -1), bits)[:, :n_blocks]
    codes = _unpacked(packed.reshape(n_columns, -1), bits)[:, :n_terms]
    if groups is not None and (groups != np.arange(n_terms) // block).any():
        scales, zeros, block = scales[:, groups], zeros.reshape(scales.shape)[:, groups], 1
    weight = _dequantised(b, codes, scales, zeros.reshape(scales.shape), block)
    weight = b.add("Transpose", weight, perm=[1, 0])
    kind, bias, output = b.kind_of(b.input(2)), b.input(5), b.node.output[0]
    if kind in _NARROW_FLOATS:
        weight = b.add("Cast", weight, to=kind)
    value = b.add("MatMul", b.input(0), weight, output="" if bias else output)
    if bias:
        b.add("Add", value, bias, output=output)


def _dequantised(b: QuantisedBuilder, codes: Array, scales: Array, zeros: Array, block: int) -> str:
    """Return codes as numbers.

    Args:
        b: Builder of the nodes.
        codes: Bytes, or numbers of another type, which become floats; shape (..., n).
        scales: Scale of each block, shape (..., blocks).
        zeros: Zero point of each block, shape (..., blocks).
        block: Length of a block; the last may be shorter.
    """
    n = codes.shape[-1]
    if n % block or block == 1 or not _are_bytes(codes, zeros):
        wide = (np.repeat(each, block, axis=-1)[..., :n] for each in (scales, zeros))
        scale, zero = (each.astype(np.float32) for each in wide)
        return b.constant(((codes.astype(np.float32) - zero) * scale).astype(scales.dtype))
    rows = b.add(
        "DequantizeLinear",
        b.constant(codes.reshape(-1, block)),
        b.constant(scales.reshape(-1)),
        b.constant(zeros.astype(codes.dtype).reshape(-1)),
        axis=0,
    )
    return b.add("Reshape", rows, b.constant(np.array(codes.shape)))


def _are_bytes(codes: Array, zeros: Array) -> bool:
    """Return whether codes are bytes, and zero points whole numbers of their type."""
    if codes.dtype not in (np.int8, np.uint8):
        return False
    limits = np.iinfo(codes.dtype)
    is_inside = limits.min <= zeros.min(initial=0) and zeros.max(initial=0) <= limits.max
    return bool(is_inside and (zeros == np.round(zeros)).all())


def _unpacked(rows: Array, bits: int) -> Array:
    """Return the numbers of some bits in each byte of rows, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (rows[..., np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(numbers.reshape(len(rows), -1))

"""Replacement of operators that importers lack or misread by common ones."""

from collections.abc import Callable
from math import prod

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from tuner.errors import ModelError, summary
from tuner.networks.onnx.classical import operators
from tuner.networks.onnx.contrib.contributed import CONTRIBUTED, DOMAIN
from tuner.networks.onnx.graph import Array
from tuner.networks.onnx.node_builder import Replacement, Tables, UnknownValueError, Values
from tuner.networks.onnx.operators.block_scales import replace_block_scales
from tuner.networks.onnx.operators.dropped_forms import replace_elementwise_norm, replace_mask
from tuner.networks.onnx.operators.explicit_pads import pad_explicitly, pad_pool, pad_transposed
from tuner.networks.onnx.operators.first_axes import BROADCASTS
from tuner.networks.onnx.operators.fourier import replace_dft, replace_stft
from tuner.networks.onnx.operators.normalisations import (
    ACTIVATIONS,
    replace_full_norm,
    replace_layer_norm,
    replace_mean_variance,
)
from tuner.networks.onnx.operators.scales import round_scales


def expand_operators(model: onnx.ModelProto, tables: Tables) -> int:
    """Replace operators that importers lack or misread in the main graph, in place.

    Args:
        model: Simplified model; its ``value_info`` gives the shapes of values.
        tables: Constants so far, to which those of the replacements are added.

    Returns:
        Number of replaced nodes. A node stays if what must be constant is computed.

    Raises:
        ModelError: If the constants are too large, or an operator is malformed.
    """
    graph = model.graph
    if not any((node.domain, node.op_type) in _REPLACEMENTS for node in graph.node):
        return 0
    values = Values.of(model)
    nodes: list[onnx.NodeProto] = []
    n_replaced = 0
    for node in graph.node:
        replace = _REPLACEMENTS.get((node.domain, node.op_type))
        builder = Replacement(node, graph, values, tables)
        try:
            is_replaced = replace is not None and replace(builder) is not False
        except UnknownValueError:
            is_replaced = False
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ModelError(
                f"the operands and attributes of a {node.op_type} do not fit together "
                f"({summary(error, max_chars=200)}): export the model again",
                code="invalid-model",
            ) from error
        nodes += builder.nodes if is_replaced else [node]
        n_replaced += is_replaced
    del graph.node[:]
    graph.node.extend(nodes)
    return n_replaced


def _reverse_sequence(b: Replacement) -> None:
    """Replace by a gather: each element takes the mirrored place, or its own behind the end."""
    data, lengths = b.input(0), b.input(1)
    shape = b.shape(data)
    time_axis, batch_axis = int(b.attribute("time_axis", 0)), int(b.attribute("batch_axis", 1))

    def along(axis: int) -> list[int]:
        return [-1 if each == axis else 1 for each in range(len(shape))]

    b.check_table(shape[time_axis])
    time = b.constant(np.arange(shape[time_axis]).reshape(along(time_axis)))
    ends = b.reshape(lengths, *along(batch_axis))
    last = b.add("Sub", ends, b.constant(np.array(1)))
    places = b.add("Where", b.add("Less", time, ends), b.add("Sub", last, time), time)
    indices = b.add("Expand", places, b.constant(np.array(shape)))
    b.add("GatherElements", data, indices, axis=time_axis, output=b.node.output[0])


def _eye_like(b: Replacement) -> None:
    """Replace by a constant."""
    rows, columns = b.shape(b.input(0))
    b.check_table(rows, columns)
    kind = b.attribute("dtype")
    dtype = helper.tensor_dtype_to_np_dtype(kind) if kind else b.dtype(b.input(0))
    eye = b.constant(np.eye(rows, columns, int(b.attribute("k", 0))).astype(dtype))
    b.add("Identity", eye, output=b.node.output[0])


def _compress(b: Replacement) -> None:
    """Replace by a gather where the choice is constant."""
    chosen, axis = b.array(1), b.attribute("axis")
    data = b.reshape(b.input(0), -1) if axis is None else b.input(0)
    if chosen is None:
        raise UnknownValueError
    places = b.constant(np.flatnonzero(chosen))
    b.add("Gather", data, places, axis=int(axis or 0), output=b.node.output[0])


def _affine_grid(b: Replacement) -> None:
    """Replace by a product of the points of the grid, from -1 to 1, with each matrix."""
    theta, sizes = b.input(0), b.array(1)
    if sizes is None:
        raise UnknownValueError
    n_batches, _, *lengths = map(int, sizes)
    b.check_table(*lengths, len(lengths) + 1)
    if b.attribute("align_corners", 0):
        axes = [np.linspace(-1.0, 1.0, n) for n in lengths]
    else:
        axes = [(2.0 * np.arange(n) + 1) / n - 1 for n in lengths]
    grid = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*reversed(grid), np.ones(lengths)], -1).reshape(-1, len(lengths) + 1)
    columns = b.add("Transpose", theta, perm=[0, 2, 1])
    moved = b.add("MatMul", b.constant(points.astype(b.dtype(theta))), columns)
    b.reshape(moved, n_batches, *lengths, len(lengths), output=b.node.output[0])


def _lp_normalization(b: Replacement) -> None:
    """Replace by a quotient, scaled first: squares of small or large elements leave the range."""
    dtype = b.dtype(b.input(0))
    axis, p = int(b.attribute("axis", -1)) % len(b.shape(b.input(0))), int(b.attribute("p", 2))
    data = b.as_float(b.input(0), dtype)
    zero, one = (b.constant(np.array(n, np.promote_types(dtype, np.float32))) for n in (0, 1))
    largest = b.reduce("ReduceMax", b.add("Abs", data), axis)
    # The norm of zeros is zero, and so is the output.
    is_positive = b.add("Greater", largest, zero)
    if b.opset < 9:
        kind = helper.np_dtype_to_tensor_dtype(np.promote_types(dtype, np.float32))
        factor = b.add("Add", largest, b.add("Cast", b.add("Not", is_positive), to=kind))
    else:
        factor = b.add("Where", is_positive, largest, one)
    scaled = b.add("Div", data, factor)
    powers = b.add("Abs", scaled) if p == 1 else b.add("Mul", scaled, scaled)
    total = b.reduce("ReduceSum", powers, axis)
    norm = b.add("Max", total if p == 1 else b.add("Sqrt", total), one)
    b.from_float(b.add("Div", scaled, norm), dtype, b.node.output[0])


def _col2im(b: Replacement) -> None:
    """Replace by a transposed convolution with one kernel of a single one for each column."""
    data = b.input(0)
    n, _, _ = b.shape(data)
    image, block = b.array(1), b.array(2)
    if image is None or block is None:
        raise UnknownValueError
    rank, n_taps = len(image), prod(block.tolist())
    strides = np.array(b.attribute("strides", [1] * rank))
    dilations = np.array(b.attribute("dilations", [1] * rank))
    pads = np.array(b.attribute("pads", [0] * 2 * rank))
    extent = dilations * (block - 1) + 1
    padding = pads[:rank] + pads[rank:]
    counts = (image + padding - extent) // strides + 1
    n_channels = b.shape(data)[1] // n_taps
    n_blocks = prod(counts)
    if not n_channels or b.shape(data)[1:] != (n_channels * n_taps, n_blocks):
        raise ValueError(f"{b.shape(data)[1:]} for {n_blocks} blocks of {n_taps} elements")
    b.check_table(n_channels, n_taps, n_taps)
    kernel = np.tile(np.eye(n_taps), (n_channels, 1)).reshape(-1, 1, *block)
    columns = b.reshape(data, n, n_channels * n_taps, *counts)
    rest = image - ((counts - 1) * strides + extent - padding)
    b.add(
        "ConvTranspose",
        columns,
        b.constant(kernel.astype(b.dtype(data))),
        output=b.node.output[0],
        group=n_channels,
        kernel_shape=block.tolist(),
        strides=strides.tolist(),
        dilations=dilations.tolist(),
        pads=pads.tolist(),
        output_padding=rest.tolist(),
    )


def _max_pool(b: Replacement) -> bool:
    """Replace the indices output of a MaxPool by a look-up at the largest element of each window.

    In each window, elements come before the padding, which may be equal to the largest of them.
    """
    if len(b.node.output) < 2 or not b.node.output[1]:
        return False
    data, largest = b.input(0), b.node.output[0]
    n, n_channels, *sizes = b.shape(data)
    if b.attribute("storage_order", 0):
        raise UnknownValueError
    outputs = b.shape(largest)[2:]
    b.check_table(*outputs, *b.attribute("kernel_shape"))
    table = _windows(b, sizes, outputs)
    n_windows, n_taps = table.shape
    dtype, n_pixels = b.dtype(data), prod(sizes)
    inside_first = np.argsort(table == n_pixels, axis=1, kind="stable")
    places_of = b.constant(np.take_along_axis(table, inside_first, 1))
    least = -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
    flat = b.reshape(data, n, n_channels, n_pixels)
    outside = b.constant(np.full((n, n_channels, 1), least, dtype))
    windows = b.add("Gather", b.add("Concat", flat, outside, axis=2), places_of, axis=2)
    taps = b.add("ArgMax", windows, axis=3, keepdims=0)
    rows = b.constant(np.arange(n_windows) * n_taps)
    places = b.add("Gather", b.reshape(places_of, -1), b.add("Add", taps, rows), axis=0)
    offsets = np.arange(n * n_channels).reshape(n, n_channels, 1) * n_pixels
    absolute = b.add("Add", places, b.constant(offsets))
    b.reshape(absolute, n, n_channels, *outputs, output=b.node.output[1])
    pool = onnx.NodeProto()
    pool.CopyFrom(b.node)
    del pool.output[1:]
    b.nodes.append(pool)
    return True


def _windows(b: Replacement, sizes: list[int], outputs: tuple[int, ...]) -> Array:
    """Return the flat pixel that each tap of each window reads; the number of pixels outside.

    Returns:
        Shape (windows, taps), int64.
    """
    rank = len(sizes)
    kernel = b.attribute("kernel_shape")
    strides, dilations = (b.attribute(key, [1] * rank) for key in ("strides", "dilations"))
    pads = b.attribute("pads", [0] * 2 * rank)
    pixels = np.zeros((1, 1), np.int64)
    is_inside = np.ones((1, 1), bool)
    for axis, size in enumerate(sizes):
        first = np.arange(outputs[axis]) * strides[axis] - pads[axis]
        places = first[:, None] + np.arange(kernel[axis]) * dilations[axis]
        inside = (places >= 0) & (places < size)
        # Each axis multiplies the windows and the taps of the axes before.
        shape = (pixels.shape[0] * places.shape[0], pixels.shape[1] * places.shape[1])
        pixels = (pixels[:, None, :, None] * size + places[None, :, None, :]).reshape(shape)
        is_inside = (is_inside[:, None, :, None] & inside[None, :, None, :]).reshape(shape)
    return np.where(is_inside, pixels, prod(sizes))


def _max_unpool(b: Replacement) -> None:
    data, indices = b.input(0), b.input(1)
    shape = b.shape(data)
    given, rank = b.array(2), len(shape) - 2
    if given is not None:
        total = given.tolist()
    else:
        kernel = b.attribute("kernel_shape")
        strides, pads = b.attribute("strides", [1] * rank), b.attribute("pads", [0] * 2 * rank)
        total = [
            *shape[:2],
            *(
                (size - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[rank + axis]
                for axis, size in enumerate(shape[2:])
            ),
        ]
    b.check_table(*total)
    zeros = b.constant(np.zeros(prod(total), b.dtype(data)))
    places, values = b.reshape(indices, -1), b.reshape(data, -1)
    scattered = b.add("ScatterElements", zeros, places, values, axis=0)
    b.reshape(scattered, *total, output=b.node.output[0])


def _is_inf(b: Replacement) -> bool:
    """Replace where one sign is left out, which TVM's importer ignores."""
    signs = b.attribute("detect_positive", 1), b.attribute("detect_negative", 1)
    if all(signs):
        return False
    data = b.input(0)
    # By order, since Equal has no floating-point numbers before opset 11. None is less than itself.
    largest = ml_dtypes.finfo(b.dtype(data)).max  # type: ignore[no-untyped-call]
    op = "Greater" if signs[0] else "Less"
    limit = b.constant(np.array(largest if signs[0] else -largest)) if any(signs) else data
    b.add(op, data, limit, output=b.node.output[0])
    return True


def _space_to_depth(b: Replacement) -> bool:
    """Replace the order of channels that TVM's importer ignores: each with all of its places."""
    if b.attribute("mode", b"DCR") != b"CRD":
        return False
    data, size = b.input(0), b.attribute("blocksize")
    n, channels, height, width = b.shape(data)
    rows, columns = height // size, width // size
    if (height % size, width % size) != (0, 0):
        raise ValueError(f"blocks of {size} do not divide an image of {height} by {width}")
    split = b.reshape(data, n, channels, rows, size, columns, size)
    moved = b.add("Transpose", split, perm=[0, 1, 3, 5, 2, 4])
    total = channels * size * size
    b.reshape(moved, n, total, rows, columns, output=b.node.output[0])
    return True


def _deform_conv(b: Replacement) -> None:
    """Replace by samples of a grid for each tap, and a 1x1 convolution of the samples."""
    data, weight, offset = b.input(0), b.input(1), b.input(2)
    n, n_in, height, width = b.shape(data)
    n_out, per_group, *kernel = b.shape(weight)
    rows, columns = b.shape(offset)[2:]
    n_taps, groups = kernel[0] * kernel[1], int(b.attribute("offset_group", 1))
    dtype = b.dtype(data)
    strides, dilations = (b.attribute(key, [1, 1]) for key in ("strides", "dilations"))
    pads = b.attribute("pads", [0] * 4)
    places = [
        np.arange(count)[None, :] * strides[axis]
        - pads[axis]
        + np.arange(kernel[axis])[:, None] * dilations[axis]
        for axis, count in enumerate((rows, columns))
    ]
    b.check_table(*kernel, rows, columns, 2)
    # x before y, as in the grids of GridSample: (taps, rows, columns, 2).
    y = np.broadcast_to(places[0][:, None, :, None], (*kernel, rows, columns))
    x = np.broadcast_to(places[1][None, :, None, :], (*kernel, rows, columns))
    origin = np.stack([x, y], -1).reshape(n_taps, rows, columns, 2)
    scale = 2 / np.array([width, height])
    shifts = b.reshape(offset, n * groups, n_taps, 2, rows, columns)
    shifts = b.add("Gather", shifts, b.constant(np.array([1, 0])), axis=2)
    shifts = b.add("Transpose", shifts, perm=[0, 1, 3, 4, 2])
    shifts = b.add("Mul", shifts, b.constant(scale.astype(dtype)))
    start = b.constant((origin * scale + scale / 2 - 1).astype(dtype))
    grid = b.reshape(b.add("Add", shifts, start), n * groups, n_taps * rows, columns, 2)
    images = b.reshape(data, n * groups, n_in // groups, height, width)
    mode = "linear" if b.opset >= 20 else "bilinear"
    samples = b.add("GridSample", images, grid, mode=mode, padding_mode="zeros", align_corners=0)
    if b.input(4):
        samples = b.reshape(samples, n, groups, n_in // groups, n_taps, rows, columns)
        mask = b.reshape(b.input(4), n, groups, 1, n_taps, rows, columns)
        samples = b.add("Mul", samples, mask)
    samples = b.reshape(samples, n, n_in * n_taps, rows, columns)
    taps = b.reshape(weight, n_out, per_group * n_taps, 1, 1)
    bias = [b.input(3)] if b.input(3) else []
    group = int(b.attribute("group", 1))
    b.add(
        *("Conv", samples, taps, *bias), output=b.node.output[0], group=group, kernel_shape=[1, 1]
    )


def _slice(b: Replacement) -> bool:
    """Shorten steps that leave their axis at once, with which TVM's importer overflows."""
    steps = b.array(4)
    if b.opset < 10 or steps is None:
        return False
    lengths = np.maximum(b.shape(b.input(0)), 1)
    axes = b.array(3)
    limits = lengths[: steps.size] if axes is None else lengths[axes]
    short = np.clip(steps, -limits, limits).astype(steps.dtype)
    if (short == steps).all():
        return False
    b.add("Slice", *b.node.input[:4], b.constant(short), output=b.node.output[0])
    return True


_STANDARD: dict[str, Callable[[Replacement], bool | None]] = {
    **ACTIVATIONS,
    **BROADCASTS,
    "AffineGrid": _affine_grid,
    "AveragePool": pad_pool,
    "BatchNormalization": replace_elementwise_norm,
    "Col2Im": _col2im,
    "Compress": _compress,
    "Conv": pad_explicitly,
    "ConvTranspose": pad_transposed,
    "DFT": replace_dft,
    "DeformConv": _deform_conv,
    "DequantizeLinear": replace_block_scales,
    "Dropout": replace_mask,
    "EyeLike": _eye_like,
    "IsInf": _is_inf,
    "LayerNormalization": replace_layer_norm,
    "LpNormalization": _lp_normalization,
    "LpPool": pad_pool,
    "MaxPool": lambda b: pad_pool(b) or _max_pool(b),
    "MaxUnpool": _max_unpool,
    "MeanVarianceNormalization": replace_mean_variance,
    "QuantizeLinear": replace_block_scales,
    "RMSNormalization": replace_full_norm,
    "Resize": round_scales,
    "ReverseSequence": _reverse_sequence,
    "STFT": replace_stft,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Upsample": round_scales,
}
_REPLACEMENTS = {
    **{("", name): each for name, each in _STANDARD.items()},
    **{(DOMAIN, name): each for name, each in CONTRIBUTED.items()},
    **{(operators.DOMAIN, name): each for name, each in operators.CLASSICAL.items()},
}

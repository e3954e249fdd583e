"""Transposed convolutions as convolutions whose channels are moved to space (sub-pixel form).

TVM's own definition inserts ``stride - 1`` zeros between the pixels of the input and multiplies
with all of them. With stride s along an axis, output position s * q + r is instead

    sum over j of x[q - j] * w[r + s * j],

a convolution of kernel size ceil(k / s) with one set of channels for each r (Shi et al., 2016,
"Is the deconvolution layer the same as a convolutional layer?"). It is tuned like any other
convolution, for each rank, group, stride, dilation and padding.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import Array, CallVisitor, dtype_of, name_of

_LAYOUTS = {1: ("NCW", "IOW"), 2: ("NCHW", "IOHW"), 3: ("NCDHW", "IODHW")}
_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


@mutator
class TransposedConvolutionReplacer(CallVisitor):
    """Mutator of channels-first transposed convolutions whose weight is constant."""

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Replace one call after its operands."""
        name = name_of(call)
        if not (name.startswith("nn.conv") and name.endswith("_transpose")):
            return call
        weight = self._weight(call.args[1])
        n_axes = len(call.args[0].ty.shape) - 2
        layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
        if weight is None or layouts != _LAYOUTS[n_axes]:
            return call
        return self._replace(call, weight)

    def _weight(self, expr: relax.Expr) -> Array | None:
        """Return a weight that is constant, or that constant codes are dequantised to."""
        value, dequantised = self.constant(expr), self.producer(expr, "relax.dequantize")
        if value is not None or dequantised is None:
            return value
        codes, scale, zero = map(self.constant, dequantised.args)
        if codes is None or scale is None or zero is None:
            return None
        axis = int(dequantised.attrs.axis) % codes.ndim
        along = [-1 if each == axis else 1 for each in range(codes.ndim)]
        centred = codes.astype(np.int64) - zero.astype(np.int64).reshape(along)
        return (centred * scale.reshape(along)).astype(dtype_of(dequantised))

    def _replace(self, call: relax.Call, weight: Array) -> relax.Expr:
        attrs, data = call.attrs, call.args[0]
        strides, dilations, pads = (
            [int(value) for value in values]
            for values in (attrs.strides, attrs.dilation, attrs.padding)
        )
        n_axes, groups = len(strides), int(attrs.groups)
        in_sizes = [int(dim) for dim in data.ty.shape][2:]
        batch, channels, *out_sizes = (int(dim) for dim in call.ty.shape)
        taps = [
            -(-(d * (k - 1) + 1) // s)
            for k, d, s in zip(weight.shape[2:], dilations, strides, strict=True)
        ]
        # Positions q from first to last; each gives `stride` outputs.
        begins = pads[:n_axes]
        first = [min(p // s, t - 1) for p, s, t in zip(begins, strides, taps, strict=True)]
        last = [(p + o - 1) // s for p, o, s in zip(begins, out_sizes, strides, strict=True)]
        left = [t - 1 - f for t, f in zip(taps, first, strict=True)]
        right = [
            max(0, b - f + t - size - before)
            for b, f, t, size, before in zip(last, first, taps, in_sizes, left, strict=True)
        ]
        value = self.emit(
            _CONVOLUTIONS[n_axes](
                data,
                relax.const(_sub_kernels(weight, strides, dilations, taps, groups)),
                padding=[*left, *right],
                groups=groups,
                out_dtype=str(call.ty.dtype),
            )
        )
        if any(stride > 1 for stride in strides):
            value = self._to_space(value, strides, (batch, channels, groups))
        starts = [p - s * f for p, s, f in zip(begins, strides, first, strict=True)]
        ends = [start + size for start, size in zip(starts, out_sizes, strict=True)]
        if [int(dim) for dim in value.ty.shape][2:] == out_sizes:
            return value
        axes = list(range(2, n_axes + 2))
        return relax.op.strided_slice(value, axes=axes, begin=starts, end=ends)

    def _to_space(
        self, value: relax.Expr, strides: Sequence[int], sizes: tuple[int, int, int]
    ) -> relax.Expr:
        """Move channels (group, *phase, channel) to space."""
        batch, channels, groups = sizes
        n_axes = len(strides)
        positions = [int(dim) for dim in value.ty.shape][2:]
        split = [batch, groups, *strides, channels // groups, *positions]
        value = self.emit(relax.op.reshape(value, split))
        pairs = [(n_axes + 3 + axis, 2 + axis) for axis in range(n_axes)]
        order = [0, 1, n_axes + 2, *itertools.chain.from_iterable(pairs)]
        value = self.emit(relax.op.permute_dims(value, order))
        shape = [batch, channels, *(s * q for s, q in zip(strides, positions, strict=True))]
        return self.emit(relax.op.reshape(value, shape))


def _sub_kernels(
    weight: Array,
    strides: Sequence[int],
    dilations: Sequence[int],
    taps: Sequence[int],
    groups: int,
) -> Array:
    """Return the weights of the convolution, with outputs in the order (group, *phase, channel).

    Args:
        weight: Weights of the transposed convolution, (inputs, outputs / groups, *kernel).
        strides: Strides, which are the numbers of phases.
        taps: Kernel sizes of the convolution.
    """
    n_inputs, n_outputs, *kernel = weight.shape
    n_axes = len(kernel)
    sizes = [s * t for s, t in zip(strides, taps, strict=True)]
    spread = np.zeros((n_inputs, n_outputs, *sizes), weight.dtype)
    used = [slice(0, d * (k - 1) + 1, d) for k, d in zip(kernel, dilations, strict=True)]
    spread[(slice(None), slice(None), *used)] = weight
    pairs = itertools.chain.from_iterable(zip(taps, strides, strict=True))
    split = spread.reshape(groups, n_inputs // groups, n_outputs, *pairs)
    # A convolution reads the input forwards, a transposed one backwards.
    split = np.flip(split, tuple(3 + 2 * axis for axis in range(n_axes)))
    phases = [4 + 2 * axis for axis in range(n_axes)]
    positions = [3 + 2 * axis for axis in range(n_axes)]
    ordered = split.transpose(0, *phases, 2, 1, *positions)
    return np.ascontiguousarray(ordered.reshape(-1, n_inputs // groups, *taps))

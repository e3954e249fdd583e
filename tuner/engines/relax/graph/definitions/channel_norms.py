"""Definition of normalisations over positions where the channels lie last.

Statistics of each channel over parts of the positions, which the cores share, are merged into a
scale and a shift of each channel; applying them is an elementwise kernel that fuses with others.
The variance of a part is taken around its own mean, so that large means cost no digits.
"""

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import BlockBuilder

from tuner.engines.relax.ir.tensor_types import shape_of

WIDE = "float32"
_OPAQUE = 8  # TVM's pattern of a kernel into which nothing is fused
_MAX_PARTS = 16


def define(builder: BlockBuilder, call: relax.Call, n_groups: int, n_positions: int) -> relax.Expr:
    """Define a group norm of channels that lie last.

    Args:
        builder: Receives the kernels.
        call: Group or instance norm over all axes between batch and channels.
        n_groups: Groups of channels.
        n_positions: Elements of a channel of one image.
    """
    shape, epsilon = shape_of(call), float(call.attrs.epsilon)
    data, scale, shift = call.args
    n_parts = max(n for n in range(1, _MAX_PARTS + 1) if n_positions % n == 0)
    parts = (shape[0], n_parts, n_positions // n_parts, shape[-1])
    view = builder.emit(relax.op.reshape(data, parts))

    def emit(function: Callable[..., te.Tensor], *args: relax.Expr) -> relax.Var:
        hint, attributes = function.__name__.strip("_"), {"op_pattern": _OPAQUE}
        return builder.emit(
            builder.call_te(function, *args, primfunc_name_hint=hint, primfunc_attrs=attributes)
        )

    def group_factors(
        means: te.Tensor, moments: te.Tensor, scale: te.Tensor, shift: te.Tensor
    ) -> te.Tensor:
        return _factors(_group_statistics(means, moments, n_groups, count, epsilon), scale, shift)

    count = n_positions // n_parts
    means = emit(_part_means, view)
    moments = emit(_part_moments, view, means)
    factors = emit(group_factors, means, moments, scale, shift)
    return builder.call_te(_apply, data, factors, primfunc_name_hint="group_norm")


def _part_means(x: te.Tensor) -> te.Tensor:
    position = te.reduce_axis((0, x.shape[2]), name="s")
    sums = te.compute(
        (x.shape[0], x.shape[1], x.shape[3]),
        lambda n, p, c: te.sum(wide_at(x, n, p, position, c), axis=position),
        name="sums",
    )
    return te.compute(sums.shape, lambda *i: sums(*i) / wide(int(x.shape[2])), name="means")


def _part_moments(x: te.Tensor, means: te.Tensor) -> te.Tensor:
    position = te.reduce_axis((0, x.shape[2]), name="s")

    def square(n: Any, p: Any, c: Any) -> Any:
        distance = wide_at(x, n, p, position, c) - means[n, p, c]
        return distance * distance

    return te.compute(
        means.shape, lambda n, p, c: te.sum(square(n, p, c), axis=position), name="moments"
    )


def _group_statistics(
    means: te.Tensor, moments: te.Tensor, n_groups: int, count: int, epsilon: float
) -> tuple[te.Tensor, te.Tensor]:
    """Merge the statistics of parts of equal size into mean and inverse deviation of a group."""
    batch, n_parts, n_channels = (int(dim) for dim in means.shape)
    size = n_channels // n_groups
    n = n_parts * size

    def over_parts(name: str, value: Callable[..., Any]) -> te.Tensor:
        part, channel = (te.reduce_axis((0, extent)) for extent in (n_parts, size))
        return te.compute(
            (batch, n_groups),
            lambda b, g: te.sum(value(b, g, (b, part, g * size + channel)), axis=[part, channel]),
            name=name,
        )

    sums = over_parts("sums", lambda _b, _g, place: means(*place))
    mean = te.compute(sums.shape, lambda b, g: sums[b, g] / wide(n), name="mean")

    def moment(b: Any, g: Any, place: Any) -> Any:
        distance = means(*place) - mean[b, g]
        return moments(*place) + distance * distance * wide(count)

    squares = over_parts("squares", moment)
    inverse = te.compute(
        sums.shape,
        lambda b, g: tirx.rsqrt(squares[b, g] / wide(n * count) + tirx.const(epsilon, WIDE)),
        name="inverse",
    )
    return mean, inverse


def _factors(
    statistics: tuple[te.Tensor, te.Tensor], scale: te.Tensor, shift: te.Tensor
) -> te.Tensor:
    """Return scale (0) and shift (1) of each channel, shape (2, batch, channels)."""
    mean, inverse = statistics
    batch, n_groups = (int(dim) for dim in mean.shape)
    n_channels = int(scale.shape[0])
    size = n_channels // n_groups

    def factor(which: Any, b: Any, c: Any) -> Any:
        scaled = wide_at(scale, c) * inverse[b, c // size]
        moved = wide_at(shift, c) - mean[b, c // size] * scaled
        return tirx.Select(tirx.EQ(which, 0), scaled, moved)

    return te.compute((2, batch, n_channels), factor, name="factors")


def _apply(x: te.Tensor, factors: te.Tensor) -> te.Tensor:
    def value(n: Any, *index: Any) -> Any:
        scale, shift = factors[0, n, index[-1]], factors[1, n, index[-1]]
        return (wide_at(x, n, *index) * scale + shift).astype(str(x.dtype))

    return te.compute(x.shape, value, name="group_norm")


def wide_at(tensor: te.Tensor, *index: Any) -> Any:
    """Return an element of a tensor in float32."""
    value = tensor(*index)
    return value if str(tensor.dtype) == WIDE else value.astype(WIDE)


def wide(number: float) -> Any:
    """Return a constant of float32."""
    return tirx.const(float(number), WIDE)

"""Inception v3, as in relay.testing (and MXNet's symbol before it); Szegedy, arXiv:1512.00567."""

from collections.abc import Callable

from tuner.networks.zoo.builder import GraphBuilder, Value
from tuner.networks.zoo.options import Options

_Pool = Callable[[GraphBuilder, Value, int, int, int], Value]


def inception_v3(graph: GraphBuilder, data: Value, options: Options) -> Value:
    """Build a stem of five convolutions and eleven mixed blocks."""
    x = _conv(graph, _conv(graph, data, 32, 3, stride=2), 32, 3)
    x = graph.max_pool(_conv(graph, x, 64, 3, pad=1), 3, 2)
    x = _conv(graph, _conv(graph, x, 80), 192, 3)
    x = graph.max_pool(x, 3, 2)
    for n_projected in (32, 64, 64):
        y5 = _conv(graph, _conv(graph, x, 48), 64, 5, pad=2)
        y3 = _conv(graph, _conv(graph, x, 64), 96, 3, pad=1)
        y3 = _conv(graph, y3, 96, 3, pad=1)
        pooled = _conv(graph, graph.average_pool(x, 3, 1, 1), n_projected)
        x = graph.concat(_conv(graph, x, 64), y5, y3, pooled)
    y = _conv(graph, _conv(graph, x, 64), 96, 3, pad=1)
    y = _conv(graph, y, 96, 3, stride=2)
    x = graph.concat(_conv(graph, x, 384, 3, stride=2), y, graph.max_pool(x, 3, 2))
    for n_inner in (128, 160, 160, 192):
        x = _block_c(graph, x, n_inner)
    x = _block_d(graph, x)
    x = _block_e(graph, x, GraphBuilder.average_pool)
    x = _block_e(graph, x, GraphBuilder.max_pool)
    # relay.testing pools 8x8, the whole image at 299x299; this supports other sizes, too.
    return graph.dense(graph.global_pool(x), options.classes)


def _conv(
    graph: GraphBuilder,
    x: Value,
    n_channels: int,
    kernel: int | tuple[int, int] = 1,
    stride: int = 1,
    pad: int | tuple[int, int] = 0,
) -> Value:
    return graph.relu(graph.batch_norm(graph.conv(x, n_channels, kernel, stride, pad)))


def _row(graph: GraphBuilder, x: Value, n_channels: int, width: int) -> Value:
    return _conv(graph, x, n_channels, (1, width), pad=(0, width // 2))


def _column(graph: GraphBuilder, x: Value, n_channels: int, height: int) -> Value:
    return _conv(graph, x, n_channels, (height, 1), pad=(height // 2, 0))


def _block_c(graph: GraphBuilder, x: Value, n_inner: int) -> Value:
    y = _column(graph, _row(graph, _conv(graph, x, n_inner), n_inner, 7), 192, 7)
    z = _column(graph, _conv(graph, x, n_inner), n_inner, 7)
    z = _column(graph, _row(graph, z, n_inner, 7), n_inner, 7)
    z = _row(graph, z, 192, 7)
    pooled = _conv(graph, graph.average_pool(x, 3, 1, 1), 192)
    return graph.concat(_conv(graph, x, 192), y, z, pooled)


def _block_d(graph: GraphBuilder, x: Value) -> Value:
    y = _conv(graph, _conv(graph, x, 192), 320, 3, stride=2)
    z = _column(graph, _row(graph, _conv(graph, x, 192), 192, 7), 192, 7)
    z = _conv(graph, z, 192, 3, stride=2)
    return graph.concat(y, z, graph.max_pool(x, 3, 2))


def _block_e(graph: GraphBuilder, x: Value, pool: _Pool) -> Value:
    y = _conv(graph, x, 384)
    z = _conv(graph, _conv(graph, x, 448), 384, 3, pad=1)
    pooled = _conv(graph, pool(graph, x, 3, 1, 1), 192)
    return graph.concat(
        _conv(graph, x, 320),
        _row(graph, y, 384, 3),
        _column(graph, y, 384, 3),
        _row(graph, z, 384, 3),
        _column(graph, z, 384, 3),
        pooled,
    )

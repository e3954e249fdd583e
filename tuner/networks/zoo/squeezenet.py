"""SqueezeNet 1.1, as in relay.testing; Iandola et al., arXiv:1602.07360."""

from tuner.networks.zoo.builder import GraphBuilder, Value
from tuner.networks.zoo.options import Options


def squeezenet(graph: GraphBuilder, data: Value, options: Options) -> Value:
    """Build eight fire modules without a dense layer."""
    x = graph.max_pool(_conv(graph, data, 64, 3, stride=2), 3, 2)
    x = _fire(graph, _fire(graph, x, 16, 64), 16, 64)
    x = graph.max_pool(x, 3, 2)
    x = _fire(graph, _fire(graph, x, 32, 128), 32, 128)
    x = graph.max_pool(x, 3, 2)
    for n_squeezed, n_expanded in ((48, 192), (48, 192), (64, 256), (64, 256)):
        x = _fire(graph, x, n_squeezed, n_expanded)
    x = _conv(graph, graph.dropout(x), options.classes, 1)
    return graph.global_pool(x)


def _fire(graph: GraphBuilder, x: Value, n_squeezed: int, n_expanded: int) -> Value:
    x = _conv(graph, x, n_squeezed, 1)
    return graph.concat(_conv(graph, x, n_expanded, 1), _conv(graph, x, n_expanded, 3))


def _conv(graph: GraphBuilder, x: Value, n_channels: int, kernel: int, stride: int = 1) -> Value:
    return graph.relu(graph.conv(x, n_channels, kernel, stride, kernel // 2, bias=True))

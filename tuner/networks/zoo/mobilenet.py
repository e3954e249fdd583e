"""MobileNet v1 at full width, as in relay.testing; Howard et al., arXiv:1704.04861."""

from tuner.networks.zoo.builder import GraphBuilder, Value
from tuner.networks.zoo.options import Options

#: Output channels and stride of each of the thirteen separable blocks.
_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    *[(512, 1)] * 5,
    (1024, 2), (1024, 1),
)  # fmt: skip


def mobilenet(graph: GraphBuilder, data: Value, options: Options) -> Value:
    """Build alternating depthwise and pointwise convolutions."""
    x = _active(graph, graph.conv(data, 32, 3, 2, 1))
    for n_channels, stride in _BLOCKS:
        x = _active(graph, graph.conv(x, x.n_channels, 3, stride, 1, group=x.n_channels))
        x = _active(graph, graph.conv(x, n_channels, 1))
    return graph.dense(graph.global_pool(x), options.classes)


def _active(graph: GraphBuilder, x: Value) -> Value:
    return graph.relu(graph.batch_norm(x, epsilon=1e-5))

"""ResNet v2 for images and for videos, as in relay.testing (and MXNet's symbol before it).

He et al., "Identity Mappings in Deep Residual Networks", ECCV'16: batch norm and ReLU come before
each convolution, and the input has a separate batch norm. torchvision's ResNet differs: it is the
first version.
"""

from tuner.networks.zoo.builder import GraphBuilder, Value
from tuner.networks.zoo.options import Options

_FILTERS = (64, 128, 256, 512)


def resnet18(graph: GraphBuilder, data: Value, options: Options) -> Value:
    """Build eighteen layers; with a three-dimensional graph, the video network R3D-18."""
    return _resnet(graph, data, options, (2, 2, 2, 2), bottleneck=False)


def resnet34(graph: GraphBuilder, data: Value, options: Options) -> Value:
    """Build thirty-four layers."""
    return _resnet(graph, data, options, (3, 4, 6, 3), bottleneck=False)


def resnet50(graph: GraphBuilder, data: Value, options: Options) -> Value:
    """Build fifty layers in bottleneck units."""
    return _resnet(graph, data, options, (3, 4, 6, 3), bottleneck=True)


def _resnet(
    graph: GraphBuilder,
    data: Value,
    options: Options,
    n_units: tuple[int, ...],
    *,
    bottleneck: bool,
) -> Value:
    x = _stem(graph, graph.batch_norm(data), options.image)
    unit = _bottleneck_unit if bottleneck else _basic_unit
    for stage, n_repeats in enumerate(n_units):
        n_filters = _FILTERS[stage] * (4 if bottleneck else 1)
        for index in range(n_repeats):
            stride = 2 if stage > 0 and index == 0 else 1
            x = unit(graph, x, n_filters, stride, project=index == 0)
    x = graph.relu(graph.batch_norm(x))
    return graph.dense(graph.global_pool(x), options.classes)


def _stem(graph: GraphBuilder, x: Value, image: int) -> Value:
    if image <= 32:
        return graph.conv(x, 64, 3, pad=1)
    if graph.n_spatial == 3:
        # relay.testing has no pooling in the video network.
        x = graph.conv(x, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3))
        return graph.relu(graph.batch_norm(x))
    x = graph.conv(x, 64, 7, 2, 3)
    return graph.max_pool(graph.relu(graph.batch_norm(x)), 3, 2, 1)


def _basic_unit(
    graph: GraphBuilder, x: Value, n_filters: int, stride: int, *, project: bool
) -> Value:
    active = graph.relu(graph.batch_norm(x))
    y = graph.conv(active, n_filters, 3, stride, 1)
    y = graph.conv(graph.relu(graph.batch_norm(y)), n_filters, 3, 1, 1)
    return graph.add(y, graph.conv(active, n_filters, 1, stride) if project else x)


def _bottleneck_unit(
    graph: GraphBuilder, x: Value, n_filters: int, stride: int, *, project: bool
) -> Value:
    active = graph.relu(graph.batch_norm(x))
    # In relay.testing the first of the three convolutions has the stride.
    y = graph.conv(active, n_filters // 4, 1, stride)
    y = graph.conv(graph.relu(graph.batch_norm(y)), n_filters // 4, 3, 1, 1)
    y = graph.conv(graph.relu(graph.batch_norm(y)), n_filters, 1)
    return graph.add(y, graph.conv(active, n_filters, 1, stride) if project else x)

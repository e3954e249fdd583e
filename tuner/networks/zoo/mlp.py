"""The multilayer perceptron of relay.testing: 784, 128, 64 and 10 units."""

from tuner.networks.zoo.builder import GraphBuilder, Value
from tuner.networks.zoo.options import Options


def mlp(graph: GraphBuilder, data: Value, options: Options) -> Value:
    """Build two hidden layers over a flattened grey image."""
    x = Value(graph.flatten(data).name, options.image**2)
    for n_units in (128, 64):
        x = graph.relu(graph.dense(x, n_units))
    return graph.dense(x, options.classes)

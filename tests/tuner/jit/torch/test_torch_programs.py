"""Properties of graphs, and their export as reproducible programs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.tuner.jit.modules import Counting, Perceptron, close
from tuner.errors import ModelError
from tuner.jit.torch.torch_programs import GraphFacts, Inputs, examine, export, without_fast_paths


def capture(function: Callable[..., Any], *args: Any) -> tuple[Any, GraphFacts, list[Any]]:
    """Return the first graph of a function, its properties, and its inputs."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        graphs.append((graph, examine(graph), inputs))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args)
    captured: tuple[Any, GraphFacts, list[Any]] = graphs[0]
    return captured


def written(function: Callable[..., Any], folder: Path, *args: Any) -> bytes:
    """Return the program of a function, with its parameters and buffers as weights."""
    graph, facts, inputs = capture(function, *args)
    weights = tuple(at for at, value in enumerate(inputs) if all(value is not arg for arg in args))
    tensors = tuple(at for at in range(len(inputs)) if at not in weights)
    given = Inputs(tuple(inputs), weights, tensors, torch.device("cpu"))
    return export(graph, facts, given).write(folder).read_bytes()


@pytest.mark.parametrize(
    ("function", "facts"),
    [
        (lambda x: (x + 1.0, x.shape[0]), GraphFacts((0,), (), (), False, False)),
        (lambda x: (x.view(3, 2), x * 2.0), GraphFacts((1,), (0,), (), False, False)),
        (lambda x: x.view(-1)[2:].mul_(2.0).sum(), GraphFacts((0,), (), (0,), False, False)),
        (Counting(), GraphFacts((0,), (), (0,), False, False)),
        (lambda x: (x.add_(1.0), x + 1.0), GraphFacts((1,), (0,), (0,), True, False)),
        (nn.Linear(3, 3), GraphFacts((0,), (), (), False, True)),
        (torch.no_grad()(nn.Linear(3, 3).forward), GraphFacts((0,), (), (), False, False)),
    ],
)
def test_properties_of_graphs(function: Callable[..., Any], facts: GraphFacts) -> None:
    """Views, changes in place, and gradients of results are found."""
    assert capture(function, torch.ones(2, 3))[1] == facts


def test_the_same_function_gives_the_same_bytes(tmp_path: Path) -> None:
    """Bytes depend on the weights, not on values of tensors or on sizes that other calls had."""
    programs = [written(Perceptron().eval(), tmp_path, torch.randn(2, 6)) for _ in range(2)]

    assert programs[0] == programs[1]
    assert written(Perceptron(seed=1).eval(), tmp_path, torch.ones(2, 6)) != programs[0]


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda x: x + torch.rand(2, 3), "draws random numbers"),
        (nn.Dropout(), r"draws random numbers.*\.eval\(\)"),
        (nn.BatchNorm1d(3), r"changes its statistics: call \.eval\(\)"),
        (lambda x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5), "random"),
    ],
)
def test_functions_that_a_library_cannot_compute(
    function: Callable[..., Any], error: str, tmp_path: Path
) -> None:
    """Random numbers, and changes that torch does not count, are refused."""
    with pytest.raises(ModelError, match=error):
        written(function, tmp_path, torch.ones(2, 3))


@pytest.mark.parametrize(
    "function",
    [
        nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval(),
        nn.BatchNorm1d(3, track_running_stats=False),
        torch.no_grad()(nn.Linear(3, 3).forward),
        lambda x: (x + 0.0).add_(1.0),
    ],
)
def test_functions_that_a_library_can_compute(function: Callable[..., Any], tmp_path: Path) -> None:
    """Layers without an effect in training mode, and changes of intermediate tensors."""
    assert written(function, tmp_path, torch.ones(2, 3))


def padded(layer: nn.Module) -> Callable[..., Any]:
    """Return a function that calls a layer with two padded positions in each row."""
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[:, 3:] = True
    return lambda x: layer(x, src_key_padding_mask=padding)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("change", [lambda layer: layer, padded], ids=["plain", "padded"])
def test_fused_layers(change: Callable[..., Any], norm_first: bool) -> None:
    """The layers that torch fuses for inference are computed by plain operators."""
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=norm_first
    )
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        graph, _, inputs = capture(change(layer.eval()), x)
        plain = without_fast_paths(graph)

        assert plain is not graph
        assert "torch._transformer_encoder_layer_fwd" not in plain.code
        close(plain(*inputs)[0][:, :3], graph(*inputs)[0][:, :3])

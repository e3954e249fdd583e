"""Recurrent layers of torch are loops over a step, and compute what torch does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.tuner.engines.relax.frontend.torch_programs import save_program
from tests.tuner.engines.relax.networks import UNOPTIMISED, run_network
from tuner.engines.relax.frontend.converters.torch.torch_recurrent import CONVERTERS
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.graph.pipeline import lower

_STEPS, _BATCH, _SIZE, _HIDDEN = 3, 2, 6, 4


class Layers(nn.Module):  # type: ignore[misc]
    """Recurrent layers of the same inputs, of shape (batch, steps, size)."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (_SIZE, _HIDDEN)
        self.stack = nn.LSTM(*sizes, num_layers=2, bidirectional=True, batch_first=True)
        self.from_state = nn.LSTM(*sizes, bias=False)
        self.gates = nn.GRU(*sizes, num_layers=2, bidirectional=True, dropout=0.5)
        self.plain = nn.RNN(*sizes, bidirectional=True)
        self.cut = nn.RNN(*sizes, nonlinearity="relu", bias=False, batch_first=True)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return all outputs of all layers."""
        by_step = x.transpose(0, 1)
        results: list[Any] = [
            self.stack(x),
            self.from_state(by_step, (state, -state)),
            self.gates(by_step),
            self.plain(by_step),
            self.cut(x, state),
        ]
        flat = [[y, *(last if isinstance(last, tuple) else (last,))] for y, last in results]
        return tuple(each for outputs in flat for each in outputs)


def test_outputs_are_those_of_torch(tmp_path: Path) -> None:
    """States of all steps and last states agree, of stacks, both directions, and given states."""
    torch.manual_seed(0)
    network = Layers()
    inputs = torch.randn(_BATCH, _STEPS, _SIZE), torch.randn(1, _BATCH, _HIDDEN)

    module = lower(save_program(network, tmp_path, *inputs), UNOPTIMISED, is_whole=True)

    actual = run_network(module, *(each.numpy() for each in inputs))
    for mine, expected in zip(actual, network(*inputs), strict=True):
        np.testing.assert_allclose(mine, expected.detach().numpy(), atol=2e-7, strict=True)


def test_long_sequences_are_one_loop(tmp_path: Path) -> None:
    """A layer of many steps has one product of all inputs, and one kernel of a step."""
    file = save_program(nn.LSTM(_SIZE, _HIDDEN), tmp_path, torch.randn(50, 1, _SIZE))

    subgraphs = find_subgraphs(lower(file, UNOPTIMISED))

    assert sorted(each.name for each in subgraphs) == ["lstm_step[1x4]", "matmul_add[50x16]"]


def test_projections_that_were_not_decomposed_are_refused() -> None:
    """They stay in programs with sparse tensors; the converter has no product for them."""
    network = nn.LSTM(_SIZE, _HIDDEN, proj_size=2).eval()
    program = torch.export.export(network, (torch.randn(_STEPS, _BATCH, _SIZE),))
    (layer,) = (each for each in program.graph.nodes if str(each.target) == "aten.lstm.input")

    with pytest.raises(NotImplementedError, match="projections"):
        CONVERTERS["lstm.input"](layer, None)


def test_projections_are_those_of_torch(tmp_path: Path) -> None:
    """A layer with projected states, which ONNX does not have, is unrolled."""
    torch.manual_seed(0)
    network = nn.LSTM(_SIZE, _HIDDEN, proj_size=2)
    x = torch.randn(_STEPS, _BATCH, _SIZE)

    module = lower(save_program(network, tmp_path, x), UNOPTIMISED, is_whole=True)

    expected, (state, memory) = network(x)
    actual = run_network(module, x.numpy())
    for mine, each in zip(actual, (expected, state, memory), strict=True):
        np.testing.assert_allclose(mine, each.detach().numpy(), atol=2e-7, strict=True)

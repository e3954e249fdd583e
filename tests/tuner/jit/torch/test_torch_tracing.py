"""Tracing of functions into reproducible programs, and functions that cannot be traced."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.tuner.jit.modules import Counting, Perceptron
from tuner.errors import ModelError
from tuner.jit.torch.torch_changes import dependencies_of
from tuner.jit.torch.torch_signatures import split_arguments
from tuner.jit.torch.torch_tracing import trace


def traced(function: Callable[..., Any], folder: Path, *args: Any) -> bytes:
    """Trace a function for arguments, and return its program."""
    folder.mkdir(exist_ok=True)
    signature, _ = split_arguments(args, {})
    return trace(function, dependencies_of(function), signature).write(folder).read_bytes()


def test_the_same_function_gives_the_same_bytes(tmp_path: Path) -> None:
    """The bytes depend on the weights, not on values of tensors, folders or earlier traces."""
    programs = [
        traced(Perceptron().eval(), tmp_path / str(number), torch.randn(2, 6))
        for number in range(2)
    ]

    assert programs[0] == programs[1]
    assert traced(Perceptron(seed=1).eval(), tmp_path, torch.ones(2, 6)) != programs[0]


def test_equal_arguments_stay_two_inputs(tmp_path: Path) -> None:
    """A call with one tensor twice is traced like a call with two tensors."""
    x = torch.ones(3)
    traced(lambda a, b: a + b * 2.0, tmp_path, x, x)

    program = torch.export.load(tmp_path / "function.pt2")

    assert len(program.graph_signature.user_inputs) == 2
    (added,) = program.module()(torch.ones(3), torch.zeros(3))
    assert added.tolist() == [1.0, 1.0, 1.0]


def draws(x: Any) -> Any:
    """Add noise."""
    return x + torch.rand(2, 3)


def writes(x: Any) -> Any:
    """Change an argument."""
    return x.add_(1.0)


def branches(x: Any) -> Any:
    """Branch on a value."""
    return x if x.sum() > 0 else -x


class Manual(nn.Module):  # type: ignore[misc]
    """A module with the function for dropout instead of the module."""

    def forward(self, x: Any) -> Any:
        """Drop out in training."""
        return nn.functional.dropout(x, 0.5, self.training)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (draws, "draws random numbers"),
        (writes, "in place"),
        (branches, "torch cannot export the function"),
        (Counting().eval(), "in place"),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout()), r"Dropout '1' is in training.*\.eval\(\)"),
        (nn.BatchNorm1d(3), r"is in training mode.*\.eval\(\)"),
        (Manual().train(), r"\.eval\(\)"),
        (lambda x: x.shape[0], "returns no tensor"),
        (
            nn.Linear(3, 3, device="meta"),
            "device meta, and its arguments are on cpu: move it there",
        ),
        (lambda x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5), "random"),
    ],
)
def test_functions_that_a_library_cannot_compute(
    function: Callable[..., Any], error: str, tmp_path: Path
) -> None:
    """Randomness, effects and branches on values are refused before anything is compiled."""
    with pytest.raises(ModelError, match=error):
        traced(function, tmp_path, torch.ones(2, 3))


def test_modules_without_training_behaviour_need_no_eval(tmp_path: Path) -> None:
    """Plain layers in training mode, and dropouts in evaluation mode, are traced."""
    assert traced(nn.Linear(3, 3), tmp_path, torch.ones(2, 3))
    assert traced(Manual().eval(), tmp_path, torch.ones(3))
    assert traced(nn.LSTM(3, 4), tmp_path, torch.ones(2, 1, 3))
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    assert traced(encoder, tmp_path, torch.ones(2, 4, 8))
    assert traced(lambda x: (x + 0.0).add_(1.0), tmp_path, torch.ones(3))

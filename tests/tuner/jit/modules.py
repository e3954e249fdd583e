"""Small modules and functions of torch that tests compile."""

from typing import Any

import torch
from torch import nn


class Perceptron(nn.Module):  # type: ignore[misc]
    """A perceptron of two layers, whose output depends on the plain attribute ``scale``."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.hidden = nn.Linear(6, 5)
        self.out = nn.Linear(5, 3)
        self.register_buffer("shift", torch.zeros(3))
        self.scale = 1.0

    def forward(self, x: Any) -> Any:
        """Return logits."""
        return self.out(torch.relu(self.hidden(x))) * self.scale + self.shift


class Counting(nn.Module):  # type: ignore[misc]
    """A module that changes a buffer at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n_calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        """Count the call, and add the count."""
        self.n_calls.add_(1)
        return x + self.n_calls


def eager(function: Any, *args: Any, **named: Any) -> Any:
    """Call a function with torch alone, without gradients."""
    with torch.no_grad():
        return function(*args, **named)


def close(actual: Any, expected: Any) -> None:
    """Compare tensors, their dtypes and their nesting."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)

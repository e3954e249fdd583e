"""Limits of inputs that programs of torch take as indices and divisors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tuner.errors import ModelError
from tuner.library.limits import InputLimit
from tuner.networks.torch_limits import find_limits

pytestmark = pytest.mark.filterwarnings("ignore")

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class _Module(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(4, 8))
        self._function = function

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """Apply the function to a table of 4 rows and 8 columns, and two indices."""
        return self._function(self.table, index)


def limits_of(function: Function) -> tuple[InputLimit, ...]:
    """Return the limits of a program with the input ``index``."""
    return find_limits(torch.export.export(_Module(function), (torch.tensor([1, 2]),)))


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (lambda t, i: functional.embedding(i, t), 0, 3),
        (lambda t, i: functional.embedding_bag(i.reshape(1, 2), t), 0, 3),
        (lambda t, i: torch.index_select(t, -1, i.to(torch.int32)), 0, 7),
        (lambda t, i: torch.gather(t, 0, i.reshape(1, 2)), 0, 3),
        (torch.take, -32, 31),
        (lambda t, i: t[i], -4, 3),
        (lambda t, i: t[:, i], -8, 7),
        (lambda t, i: t[torch.stack([i, i]).t()], -4, 3),
        (lambda t, i: torch.index_put(t, (i,), torch.ones(2, 8)), -4, 3),
        (lambda t, i: torch.scatter(t, 1, i.reshape(1, 2), 1.0), 0, 7),
        (lambda t, i: torch.scatter_add(t, 1, i.reshape(1, 2), torch.ones(1, 2)), 0, 7),
        (lambda t, i: torch.index_add(t, 0, i, torch.ones(2, 8)), 0, 3),
        (lambda t, i: functional.one_hot(i, 4) + t.long()[:2, :4], 0, 3),
        (lambda t, i: t.long()[0, :2] // i, None, None),
        (lambda t, i: t.long()[0, :2] % i, None, None),
        (lambda t, i: torch.div(t.long()[0, :2], i, rounding_mode="trunc"), None, None),
    ],
)
def test_operands_have_the_limits_that_torch_checks(
    function: Function, low: int | None, high: int | None
) -> None:
    """Only some operators count negative indices from the end; divisors have no ends."""
    (limit,) = limits_of(function)

    assert (limit.input, limit.low, limit.high, limit.part) == ("index", low, high, ())


def test_parts_of_an_input_have_their_own_limits() -> None:
    """A slice and another index two axes."""
    limits = limits_of(lambda table, index: table[index[1:], index[:1]])

    assert [(each.low, each.high, each.part) for each in limits] == [
        (-4, 3, ((1, 2, 1),)),
        (-8, 7, ((0, 1, 1),)),
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda table, index: table[index + 1],
        lambda table, index: table[index.clamp(0, 3)],
        lambda table, index: table[:2, :2] / index,
    ],
)
def test_computed_indices_and_divisors_of_floats_have_none(function: Any) -> None:
    """They are bounded where they are used, or have a quotient."""
    assert limits_of(function) == ()


def test_a_constant_beyond_is_refused() -> None:
    """The message names the node."""
    with pytest.raises(ModelError, match="index_1 has the constant index 7"):
        limits_of(lambda table, index: table[torch.tensor([7, 0])] + index.sum())

"""Limits of inputs that programs of torch take as indices and divisors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tuner.errors import ModelError
from tuner.library.limits import InputLimit
from tuner.networks.torch.torch_limits import find_limits

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
        (lambda t, i: torch.scatter_reduce(t, 1, i.reshape(1, 2), t, "amax"), 0, 7),
        (lambda t, i: torch.index_add(t, 0, i, torch.ones(2, 8)), 0, 3),
        (lambda t, i: torch.index_copy(t, 0, i, torch.ones(2, 8)), 0, 3),
        (lambda t, i: torch.index_fill(t, 1, i, 1.0), -8, 7),
        (lambda t, i: t.index_reduce(0, i, torch.ones(2, 8), "amax"), 0, 3),
        (lambda t, i: t.put(i, torch.ones(2)), -32, 31),
        (lambda t, i: functional.one_hot(i, 4) + t.long()[:2, :4], 0, 3),
        (lambda t, i: t.long()[0, :2] // i, None, None),
        (lambda t, i: t.long()[0, :2] % i, None, None),
        (lambda t, i: torch.div(t.long()[0, :2], i, rounding_mode="trunc"), None, None),
        (lambda t, i: 5 // i + t.long()[0, :2], None, None),
        (lambda t, i: 5 % i + t.long()[0, :2], None, None),
    ],
)
def test_operands_have_the_limits_that_torch_checks(
    function: Function, low: int | None, high: int | None
) -> None:
    """Only some operators count negative indices from the end; divisors have no ends."""
    (limit,) = limits_of(function)

    assert (limit.input, limit.low, limit.high, limit.part) == ("index", low, high, ())
    program = _Module(function).requires_grad_(False)
    inside, beyond = (
        ([1], [0]) if low is None or high is None else ([low, high], [low - 1, high + 1])
    )
    for number in inside:
        program(torch.full((2,), number))
    for number in beyond:
        with pytest.raises((IndexError, RuntimeError)):
            program(torch.full((2,), number))


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
        lambda table, index: table[index.reshape(2, 1).expand(2, 3).int().view(6)],
        lambda table, index: table[index.reshape(1, 2).expand(2, 2).t().int().view(4).flip(0)],
    ],
)
def test_indices_are_followed_through_casts_of_views(function: Any) -> None:
    """A cast has strides of its own, so that torch views it where it cannot view its operand."""
    (limit,) = limits_of(function)

    assert (limit.low, limit.high, limit.part) == (-4, 3, ())


@pytest.mark.parametrize(
    "function",
    [
        lambda table, index: table[index.view(torch.int32)],
        lambda table, index: torch.index_put(table, (index.byte().repeat(2),), table[0]),
        lambda table, index: table[index + 1],
        lambda table, index: table[index.clamp(0, 3)],
        lambda table, index: table[:2, :2] / index,
    ],
)
def test_what_is_no_index_of_the_caller_has_none(function: Any) -> None:
    """Indices are bits of numbers, a mask or computed; a division is of floats."""
    assert limits_of(function) == ()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda t, i: t[torch.tensor([7, 0])] + i.sum(), "index_1 has the constant index 7"),
        (lambda t, i: i // 0 + t.long()[0, :2], "floor_divide divides by the constant 0"),
    ],
)
def test_a_constant_beyond_is_refused(function: Any, message: str) -> None:
    """The message names the node."""
    with pytest.raises(ModelError, match=message):
        limits_of(function)

"""Programs of torch whose outputs depend on random numbers are refused."""

from collections.abc import Callable
from typing import Any

import pytest

from tuner.errors import ModelError
from tuner.networks.torch.torch_random import refuse_random

torch: Any = pytest.importorskip("torch")
functional = torch.nn.functional


def exported(function: Callable[[Any], Any]) -> Any:
    """Return a function of a 3x4 tensor as a program."""

    class Applied(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return function(x)

    return torch.export.export(Applied(), (torch.ones(3, 4),))


def writes_to_a_view(x: Any) -> Any:
    """Draw in place."""
    y = torch.zeros_like(x)
    y[0].normal_()
    return x + y


def branches(x: Any) -> Any:
    """Draw in a branch that the data choose."""
    return torch.cond(x.sum() > 0, lambda x: x + torch.randn_like(x), lambda x: x - 1.0, (x,))


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: x + torch.randn(4), "randn.default"),
        (lambda x: (x * 2.0, x + torch.rand_like(x)), "rand_like.default"),
        (lambda x: torch.empty_like(x).exponential_() + x, "exponential_.default"),
        (lambda x: x + torch.normal(0.0, 1.0, (4,)), "normal.float_float"),
        (lambda x: functional.dropout(x, 0.5), "dropout.default"),
        (writes_to_a_view, "normal_.default"),
        (branches, "randn_like.default"),
    ],
)
def test_an_output_of_random_numbers_is_refused(
    function: Callable[[Any], Any], operator: str
) -> None:
    """The message has the output and the operator."""
    with pytest.raises(
        ModelError, match=f"output '.+' depends on random numbers, which aten.{operator} draws"
    ) as caught:
        refuse_random(exported(function))

    assert caught.value.code == "random-operator"


def draws_for_nothing(x: Any) -> Any:
    """Draw numbers that no output depends on."""
    return x, torch.randn(4) * 2.0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: draws_for_nothing(x)[0],
        lambda x: functional.dropout(x, 0.5, training=False),
        lambda x: functional.dropout(x, 0.0),
        functional.rrelu,
        lambda x: functional.scaled_dot_product_attention(x, x, x),
    ],
)
def test_programs_that_depend_on_no_random_numbers_are_accepted(
    function: Callable[[Any], Any],
) -> None:
    """Dropouts of modules in evaluation mode are part of their programs."""
    refuse_random(exported(function))

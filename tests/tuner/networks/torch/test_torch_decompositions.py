"""Decompositions have the results of torch at the edges of their definitions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tuner.networks.torch.torch_decompositions import DECOMPOSITIONS

_aten = torch.ops.aten
_X = torch.arange(24.0).reshape(4, 6)
_NAN = torch.tensor([[torch.nan, 1.0], [torch.nan, 1.0]])


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        # Offsets count from the storage, in which these rows begin later.
        (_aten.as_strided.default, (_X[1:], (2, 2), (6, 1), 7)),
        (_aten.as_strided.default, (_X[1:], (2, 2), (6, 1))),
        (_aten.as_strided_scatter.default, (_X[1:], torch.zeros(2, 2), (2, 2), (6, 1), 7)),
        (_aten.diagonal_scatter.default, (_X, torch.zeros(4), 1)),
        (_aten.mode.default, (_NAN, 0)),
        # Of bounds that the dtype rounds.
        (_aten.histc.default, (torch.arange(100) / 100, 30, 0.1, 0.7)),
        (_aten.copysign.Tensor, (torch.tensor([-128], dtype=torch.int8), torch.ones(1))),
        (_aten.copysign.Scalar, (_X > 3, -1.0)),
        (_aten.scatter_add.default, (torch.tensor(1.0), 0, torch.tensor(0), torch.tensor(2.0))),
        (_aten.gather.default, (torch.tensor(1.0), 0, torch.tensor(0))),
    ],
    ids=lambda each: str(each) if isinstance(each, torch._ops.OpOverload) else "",
)
def test_results_are_those_of_torch(operator: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Values, dtypes and shapes are equal."""
    actual = DECOMPOSITIONS[operator](*args)

    torch.testing.assert_close(actual, operator(*args), equal_nan=True)


@pytest.mark.parametrize("offset", [0, 20])
def test_elements_outside_of_a_tensor_are_left_to_torch(offset: int) -> None:
    """They are in its storage, before the tensor or behind it."""
    convert = DECOMPOSITIONS[_aten.as_strided.default]

    assert convert(_X[1:3], (2, 2), (6, 1), offset) is NotImplemented

"""Detection of changes that change the result of a function."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.tuner.jit.modules import Perceptron
from tuner.jit.torch.torch_changes import ChangeDetector, dependencies_of

FACTOR = 2.0
WEIGHT = torch.ones(2)


def uses_globals(x: Any) -> Any:
    """Read globals that tests change."""
    return x * FACTOR + WEIGHT


def test_unchanged_module() -> None:
    """Calls, the present mode set again, and equal values are not changes."""
    module = Perceptron().eval()
    detector = ChangeDetector(dependencies_of(module))

    module(torch.ones(1, 6))
    module.eval()
    module.scale = float("1.0")
    module.hidden.in_features = int("6")

    assert not detector.has_changed()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.train(),
        lambda m: m.hidden.weight.requires_grad_(False).add_(1.0),
        lambda m: setattr(m, "hidden", nn.Linear(6, 5)),
        lambda m: setattr(m.out, "bias", nn.Parameter(m.out.bias.detach().clone())),
        lambda m: setattr(m.out.bias, "data", torch.zeros(3)),
        lambda m: setattr(m, "shift", m.shift.clone()),
        lambda m: m.add_module("more", nn.ReLU()),
        lambda m: m.hidden.register_forward_hook(lambda *given: given[-1] * 2.0),
        lambda m: m.hidden.register_buffer("more", torch.ones(1)),
        lambda m: delattr(m, "scale"),
        lambda m: m.double(),
        lambda m: setattr(m, "scale", 2.0),
        lambda m: setattr(m, "scale", 1),
    ],
)
def test_changes_of_a_module(change: Callable[[Perceptron], Any]) -> None:
    """Changes of modes, values, tensors, layers, hooks, dtypes and attributes are detected."""
    module = Perceptron().eval()
    detector = ChangeDetector(dependencies_of(module))

    change(module)

    assert detector.has_changed()


def test_changes_of_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is bound again and a tensor that is written to are detected."""
    detector = ChangeDetector(dependencies_of(uses_globals))
    assert not detector.has_changed()
    WEIGHT.add_(1.0)
    assert detector.has_changed()

    detector = ChangeDetector(dependencies_of(uses_globals))
    monkeypatch.setitem(uses_globals.__globals__, "FACTOR", 3.0)
    assert detector.has_changed()


def test_changes_of_a_closure_and_of_the_owner_of_a_method() -> None:
    """Changes of enclosed variables, modules and a method's object are detected."""
    module, number = Perceptron().eval(), 1.0

    def enclosed(x: Any) -> Any:
        return module(x) * number

    detector = ChangeDetector(dependencies_of(enclosed))
    assert not detector.has_changed()
    number = 2.0
    assert detector.has_changed()

    for function in (enclosed, module.forward):
        detector = ChangeDetector(dependencies_of(function))
        with torch.no_grad():
            module.out.weight.mul_(2.0)
        assert detector.has_changed()

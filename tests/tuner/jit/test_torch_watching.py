"""A watch notices what a function would compute otherwise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.tuner.jit.modules import Perceptron
from tuner.jit.torch_watching import Watch, sources_of

FACTOR = 2.0
WEIGHT = torch.ones(2)


def uses_globals(x: Any) -> Any:
    """Read what tests change."""
    return x * FACTOR + WEIGHT


def test_nothing_changed() -> None:
    """Calls, modes set to what they are and equal values are no changes."""
    module = Perceptron().eval()
    watch = Watch(sources_of(module))

    module(torch.ones(1, 6))
    module.eval()
    module.scale = float("1.0")
    module.hidden.in_features = int("6")

    assert not watch.has_changed()


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
    """Modes, values, tensors, layers, dtypes and attributes are seen."""
    module = Perceptron().eval()
    watch = Watch(sources_of(module))

    change(module)

    assert watch.has_changed()


def test_changes_of_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is bound anew, and a tensor that is written to."""
    watch = Watch(sources_of(uses_globals))
    assert not watch.has_changed()
    WEIGHT.add_(1.0)
    assert watch.has_changed()

    watch = Watch(sources_of(uses_globals))
    monkeypatch.setitem(uses_globals.__globals__, "FACTOR", 3.0)
    assert watch.has_changed()


def test_changes_of_a_closure_and_of_the_owner_of_a_method() -> None:
    """Variables of the enclosing function, modules among them, and the object of a method."""
    module, number = Perceptron().eval(), 1.0

    def enclosed(x: Any) -> Any:
        return module(x) * number

    watch = Watch(sources_of(enclosed))
    assert not watch.has_changed()
    number = 2.0
    assert watch.has_changed()

    for function in (enclosed, module.forward):
        watch = Watch(sources_of(function))
        with torch.no_grad():
            module.out.weight.mul_(2.0)
        assert watch.has_changed()

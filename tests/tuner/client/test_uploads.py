"""The form of a request, before it is sent."""

from collections.abc import Mapping, Sequence

import pytest

from tuner.client.uploads import form
from tuner.errors import RequestError
from tuner.jobs.requests import parse_input_sets

Shapes = Mapping[str, Sequence[int]]


def sent(inputs: Shapes | Sequence[Shapes]) -> list[str]:
    """Return the fields with shapes."""
    with form([], ["zoo:mlp"], {"inputs": inputs}, None) as parts:
        return [value for name, (_, value) in parts if name == "input"]


def test_truth_values_are_sent_as_such() -> None:
    """The service reads them as values of inputs."""
    assert sent({"flag": (True,), "ids": (1, 2)}) == ["flag=true", "ids=1,2"]


@pytest.mark.parametrize(
    "sets",
    [
        [{"a": (1, 2)}, {"a": (3, 4)}],
        [{"a": (1,), "b": (2,)}, {"b": (4,), "a": (3,)}],
        [{}],
    ],
)
def test_sets_of_shapes_arrive_as_they_were(sets: list[Shapes]) -> None:
    """The service reads what the client meant."""
    assert parse_input_sets(sent(sets)) == sets


@pytest.mark.parametrize(
    "sets",
    [
        [{"a": (1,)}, {"b": (2,)}],
        [{"a": (1,), "b": (2,)}, {"a": (3,)}],
        [{}, {"a": (1,)}],
        [{}, {}],
    ],
)
def test_sets_of_other_names_are_refused(sets: list[Shapes]) -> None:
    """They would arrive as one set, or as others."""
    with pytest.raises(RequestError, match="name the same inputs in every set") as refused:
        sent(sets)

    assert refused.value.field == "input"

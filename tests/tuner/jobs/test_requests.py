"""Models and input shapes as users write them."""

import pytest

from tuner.errors import ModelError, RequestError
from tuner.jobs.requests import model_requests, parse_input, parse_input_sets, parse_inputs


def test_parse_input_reads_name_and_shape() -> None:
    """The last equals sign ends the name."""
    assert parse_input("data=1,3,224,224") == ("data", (1, 3, 224, 224))
    assert parse_input("a=b=7") == ("a=b", (7,))
    assert parse_input("scalar=0") == ("scalar", (0,))


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("True", True)])
def test_parse_input_reads_truth_values(text: str, value: bool) -> None:
    """They differ from the shapes of one element, and are part of the name of a set."""
    assert parse_input(f"flag={text}")[1][0] is value
    sets = parse_input_sets([f"flag={text}", "flag=1"])
    assert model_requests(["net.onnx"], "llvm", sets, None)[0].name == f"net@{text.lower()}"


@pytest.mark.parametrize(
    "text", ["", "data", "data=", "=1,3", "data:1,3", "data=1,x", "data=1,,3", "data=1x3"]
)
def test_parse_input_refuses_other_forms(text: str) -> None:
    """The message shows the text and the form."""
    with pytest.raises(ModelError, match=r"input: cannot read .*expected NAME=1,3,224,224"):
        parse_input(text)


def test_parse_input_refuses_negative_dimensions() -> None:
    """A dynamic dimension must become a real one; a cache may be empty."""
    assert parse_input("past=1,0,8") == ("past", (1, 0, 8))
    with pytest.raises(ModelError, match="every dimension must be at least 0"):
        parse_input("data=-1,3")


def test_every_input_has_a_shape() -> None:
    """Inputs keep the order in which they are given."""
    assert parse_inputs(["b=1", "a=2,3"]) == {"b": (1,), "a": (2, 3)}
    assert parse_inputs([]) == {}


def test_an_input_has_one_shape_where_one_set_is_taken() -> None:
    """A second shape would belong to another set."""
    with pytest.raises(RequestError, match="given twice") as caught:
        parse_inputs(["a=1", "a=2"])

    assert caught.value.field == "input"


def test_a_name_that_occurs_again_begins_the_next_set() -> None:
    """Every set is a network of its own, named by its shapes."""
    sets = parse_input_sets(["a=1", "b=1", "b=2", "a=2"])

    assert sets == [{"a": (1,), "b": (1,)}, {"b": (2,), "a": (2,)}]
    assert [model.name for model in model_requests(["net.onnx"], "llvm", sets, None)] == [
        "net@1,1",
        "net@2,2",
    ]


def test_sets_name_the_same_inputs() -> None:
    """A shape that is missing in one set is an oversight."""
    with pytest.raises(RequestError, match="2 sets of shapes") as caught:
        parse_input_sets(["a=1", "b=1", "a=2"])

    assert caught.value.field == "input"

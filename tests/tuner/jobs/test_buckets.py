"""Buckets and masks as users write them."""

from typing import Any

import pytest

from tuner.errors import RequestError
from tuner.jobs.buckets import make_padded, parse_padded, text_of


def test_sizes_are_read_in_any_order_with_their_weights() -> None:
    """Equal requests are equal however the sizes are ordered; a name alone leaves them open."""
    padded = parse_padded(["batch=16,1:8,4", "a=b=32", "sequence"], ["attention_mask", "pad=1"])

    assert padded.buckets == {
        "batch": ((1, 8.0), (4, 1.0), (16, 1.0)),
        "a=b": ((32, 1.0),),
        "sequence": (),
    }
    assert padded.masks == {"attention_mask": 0.0, "pad": 1.0}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot read ''"),
        ("=1,2", "cannot read '=1,2'"),
        ("batch=", "'batch' has no sizes"),
        ("batch=1,,2", "cannot read"),
        ("batch=1,x", "cannot read"),
        ("batch=1.5", "cannot read"),
        ("batch=0,1", "every size must be from 1 to 1048576"),
        ("batch=-4", "every size must be from 1"),
        ("batch=1048577", "every size must be from 1"),
        ("batch=1,4,1", "has a size twice"),
        ("batch=1:0", "every weight must be above 0"),
        ("batch=1:inf", "every weight must be above 0"),
        ("auto=1,2", "'auto' chooses the sizes"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_refused(text: str, problem: str) -> None:
    """The error names the field and shows the text."""
    with pytest.raises(RequestError, match=problem) as caught:
        parse_padded([text], [])

    assert caught.value.field == "bucket"


def test_a_dimension_is_given_once() -> None:
    """Two lists for a dimension are a mistake, not a union."""
    with pytest.raises(RequestError, match="'batch' is given twice"):
        parse_padded(["batch=1", "batch=2"], [])


@pytest.mark.parametrize("text", ["", "=1", "mask=x", "mask=nan"])
def test_a_mask_that_cannot_be_used_is_refused(text: str) -> None:
    """A value of padding is a finite number."""
    with pytest.raises(RequestError, match="expected NAME or NAME=VALUE") as caught:
        parse_padded([], [text])

    assert caught.value.field == "mask"


def test_python_values_are_those_of_the_texts() -> None:
    """Lists, mappings of weights, None, and the name alone."""
    given: dict[str, Any] = {"batch": [4, 1], "sequence": {32: 1, 64: 2.5}, "auto": None}

    padded = make_padded(given, ["mask"])

    assert padded == parse_padded(["batch=1,4", "sequence=32,64:2.5", "auto"], ["mask"])
    assert make_padded("auto", {"mask": 1}) == parse_padded(["auto"], ["mask=1"])
    texts = [text_of(name, dict(sizes)) for name, sizes in padded.buckets.items()]
    assert texts == ["batch=1,4", "sequence=32,64:2.5", "auto"]
    assert make_padded(None, ()).buckets == {}


@pytest.mark.parametrize("sizes", [[], {}, [0], ["x"], {4: -1.0}, [1, 1]])
def test_python_values_are_checked(sizes: Any) -> None:
    """Empty lists, zeros and other values are refused as texts are."""
    with pytest.raises(RequestError, match="bucket"):
        make_padded({"batch": sizes}, ())

"""Users fix the shapes that the model leaves open, and no others."""

import pytest

from tuner.errors import ModelError
from tuner.networks.shapes import Dims, dynamic_dimensions, fix_shapes, refuse_empty


def test_fixed_inputs_need_no_request() -> None:
    """Fixed dimensions are kept, and requested ones filled in."""
    declared: dict[str, Dims] = {"a": (1, 3), "b": ("n", 4), "c": None}

    shapes = fix_shapes(declared, {"b": (2, 4), "c": (5,)})

    assert shapes == {"a": (1, 3), "b": (2, 4), "c": (5,)}


@pytest.mark.parametrize(
    ("declared", "requested", "message"),
    [
        ({"data": ("batch", 3, "?", "?")}, {}, r"\(batch, 3, \?, \?\).*example: data=1,3,224,224 "),
        ({"ids": ("n", "t")}, {}, r"example: ids=1,128 "),
        ({"a": ("n", 2), "b": ("m", 2)}, {"a": (1, 2)}, r"example: b=1,2 "),
        ({"data": None}, {}, r"shape unknown.*example: data=1,3,224,224 "),
        ({"data": (1, 3)}, {"x": (1, 3)}, r"no input 'x'; its inputs are 'data'"),
        ({"data": ("n", 3)}, {"data": (1, 3, 4)}, r"has 3 dimensions, but .* declares 2: \(n, 3\)"),
        ({"data": ("n", 3)}, {"data": (-1, 3)}, r"every dimension must be at least 0"),
        ({"data": ("n", 3)}, {"data": (1, 0)}, r"dimension 1 is fixed at 3; only dynamic"),
        ({"data": (1, 3)}, {"data": (4, 3)}, r"batch dimension is fixed at 1; only dynamic"),
        ({"data": ("n", 3)}, {"data": (4, 5)}, r"dimension 1 is fixed at 3; only dynamic"),
        ({"a": ("n",), "b": ("n",)}, {"a": (1,), "b": (2,)}, r"share the dimension 'n'.*1 and 2"),
    ],
)  # fmt: skip
def test_bad_requests_are_explained(
    declared: dict[str, Dims], requested: dict[str, tuple[int, ...]], message: str
) -> None:
    """Each message is one line that says what to do."""
    with pytest.raises(ModelError, match=message) as caught:
        fix_shapes(declared, requested)
    assert "\n" not in str(caught.value)


def test_a_dimension_of_several_inputs_is_given_once() -> None:
    """Unnamed dimensions of two inputs are not the same."""
    declared: dict[str, Dims] = {"ids": ("batch", "length"), "mask": ("batch", 1, "length")}

    shapes = fix_shapes(declared, {"ids": (2, 16)})

    assert shapes == {"ids": (2, 16), "mask": (2, 1, 16)}
    with pytest.raises(ModelError, match=r"for input 'mask' with shape \(2, \?\)"):
        fix_shapes({"ids": ("batch", "?"), "mask": ("batch", "?")}, {"ids": (2, 16)})


_CACHED: dict[str, Dims] = {
    "past": ("b", "p", 4),
    "ids": ("b", "s"),
    "mask": ("b", "p + s"),
    "places": ("p + 1",),
    "alone": ("q + s",),
}


def test_sums_follow_from_their_parts() -> None:
    """Exporters name so the length of a mask of old and new tokens; numbers may be added."""
    shapes = {"past": (2, 3, 4), "ids": (2, 5), "mask": (2, 8), "places": (4,), "alone": (6,)}

    assert fix_shapes(_CACHED, {"alone": (6,)}, {"b": 2, "p": 3, "s": 5}) == shapes
    assert fix_shapes(_CACHED, {"alone": (6,), "past": (2, 3, 4), "ids": (2, 5)}) == shapes
    assert fix_shapes(_CACHED, {"alone": (6,), "ids": (2, 5)}, {"p": 3}) == shapes


def test_a_given_shape_counts_more_than_the_sum() -> None:
    """The name of a dimension is only text."""
    given = {"past": (2, 3, 4), "ids": (2, 5), "mask": (2, 9), "alone": (6,)}

    assert fix_shapes(_CACHED, given)["mask"] == (2, 9)


def test_sums_of_unknown_parts_have_sizes_of_their_own() -> None:
    """No input has one of them alone."""
    dimensions = {each.name: each for each in dynamic_dimensions(_CACHED)}

    assert dimensions["p + s"].parts == ("p", "s")
    assert (dimensions["p + 1"].parts, dimensions["p + 1"].offset) == (("p",), 1)
    assert not dimensions["q + s"].parts
    assert not dimensions["s"].parts


def test_inputs_without_elements_are_refused_where_they_cannot_be_constants() -> None:
    """The message names the input."""
    refuse_empty({"a": (1, 2)})
    with pytest.raises(ModelError, match=r"'b' of shape \(0, 2\) has no elements"):
        refuse_empty({"a": (1, 2), "b": (0, 2)})

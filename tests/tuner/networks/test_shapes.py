"""Users fix the shapes that the model leaves open, and no others."""

import pytest

from tuner.errors import ModelError
from tuner.networks.shapes import Dims, fix_shapes, refuse_empty


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


def test_inputs_without_elements_are_refused_where_they_cannot_be_constants() -> None:
    """The message names the input."""
    refuse_empty({"a": (1, 2)})
    with pytest.raises(ModelError, match=r"'b' of shape \(0, 2\) has no elements"):
        refuse_empty({"a": (1, 2), "b": (0, 2)})

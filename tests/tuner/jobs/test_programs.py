"""Programs of a model with dynamic dimensions."""

import pytest

from tuner.errors import RequestError
from tuner.jobs.buckets import parse_padded
from tuner.jobs.programs import BATCH_SIZES, MAX_PROGRAMS, OTHER_SIZES, programs_of
from tuner.jobs.requests import ModelRequest
from tuner.networks.shapes import DynamicDimension, dynamic_dimensions, fix_shapes

TEXT = dynamic_dimensions({"ids": ("batch", "sequence"), "mask": ("batch", "sequence")})


def request(*buckets: str, **inputs: tuple[int, ...]) -> ModelRequest:
    """Request a model with buckets."""
    padded = parse_padded(buckets, [])
    return ModelRequest("bert.onnx", inputs=inputs, buckets=padded.buckets)


def test_every_combination_of_sizes_is_a_program() -> None:
    """Each has one size for every dimension, a name, and the product of the weights."""
    programs = programs_of(request("sequence=32,64:3", "batch=1,4:2"), TEXT)

    assert [program.dimensions for program in programs] == [
        {"batch": 1, "sequence": 32},
        {"batch": 1, "sequence": 64},
        {"batch": 4, "sequence": 32},
        {"batch": 4, "sequence": 64},
    ]
    assert [program.weight for program in programs] == [1, 3, 2, 6]
    assert programs[1].name == "bert@batch=1,sequence=64"


def test_sizes_that_are_left_out_are_chosen_by_the_place_of_the_dimension() -> None:
    """The first dimension of every input is a batch."""
    programs = programs_of(request("auto", "sequence=8"), TEXT)
    assert [program.dimensions["batch"] for program in programs] == list(BATCH_SIZES)

    programs = programs_of(request("sequence", "batch=2"), TEXT)
    assert [program.dimensions["sequence"] for program in programs] == list(OTHER_SIZES)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (request("length=4", "batch=1"), "no dynamic dimension 'length'.*'batch', 'sequence'"),
        (request("batch=1,4"), "the dimension 'sequence' of the model has no sizes"),
        (request("batch=1", "sequence=8", ids=(1, 8)), "input 'ids' has a shape"),
    ],
)
def test_dimensions_of_the_request_and_of_the_model_agree(
    asked: ModelRequest, problem: str
) -> None:
    """The error names the dimension, and those that the model has."""
    with pytest.raises(RequestError, match=problem) as caught:
        programs_of(asked, TEXT)

    assert caught.value.field == "bucket"


def test_sums_of_dimensions_take_no_sizes() -> None:
    """They follow from their parts, also where the tuner chooses."""
    declared = {"past": ("p", 4), "ids": ("s",), "mask": ("p + s",)}
    dimensions = dynamic_dimensions(declared)

    programs = programs_of(request("p=2,3", "auto"), dimensions)

    assert {tuple(each.dimensions) for each in programs} == {("p", "s")}
    with pytest.raises(RequestError, match=r"'p \+ s' follows from 'p' and 's'"):
        programs_of(request("p=2", "s=1", "p + s=3"), dimensions)


def test_a_model_of_fixed_shapes_takes_no_buckets() -> None:
    """Even the automatic choice would do nothing."""
    with pytest.raises(RequestError, match="the shapes of the model are fixed"):
        programs_of(request("auto"), ())


def test_the_number_of_programs_has_a_limit() -> None:
    """The product counts, and the error shows its factors."""
    sizes = ",".join(map(str, range(1, 10)))
    with pytest.raises(RequestError, match=rf"9 sizes.*x 9.*81 programs.*{MAX_PROGRAMS}"):
        programs_of(request(f"batch={sizes}", f"sequence={sizes}"), TEXT)


def test_dimensions_without_a_name_are_named_by_their_place() -> None:
    """An input of unknown rank has none; a size fixes every input with the dimension."""
    declared = {"data": ("?", 3, "?"), "other": ("n", "n"), "any": None}

    assert dynamic_dimensions(declared) == (
        DynamicDimension("data.0", {"data": (0,)}),
        DynamicDimension("data.2", {"data": (2,)}),
        DynamicDimension("n", {"other": (0, 1)}),
    )
    shapes = fix_shapes(declared, {"any": (7,)}, {"data.0": 2, "data.2": 5, "n": 4})
    assert shapes == {"data": (2, 3, 5), "other": (4, 4), "any": (7,)}
    with pytest.raises(RequestError, match="no dynamic dimension 'm'"):
        fix_shapes(declared, {}, {"m": 1})

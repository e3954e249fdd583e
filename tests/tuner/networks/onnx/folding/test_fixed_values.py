"""Inputs of one element can be fixed to a value, which chooses branches."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks import models
from tests.tuner.networks.models import Array, run
from tuner.engines.base import ModelFile
from tuner.errors import ModelError
from tuner.library.manifest import Source
from tuner.networks.base import LoadedModel
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.folding.fixed_values import split_values
from tuner.networks.originals import write_original
from tuner.workers.messages import decode, encode

_DATA = np.array([1.0, 2.0], "float32")


def rated(shape: tuple[int | str, ...], kind: int = TensorProto.INT64) -> onnx.ModelProto:
    """Return a model that doubles its data at the rate 16 and reduces them otherwise."""
    output = [helper.make_tensor_value_info("value", TensorProto.FLOAT, None)]
    branches = {
        "then_branch": helper.make_graph(
            [helper.make_node("Add", ["data", "data"], ["value"])], "then", [], output
        ),
        "else_branch": helper.make_graph(
            [helper.make_node("ReduceMax", ["data"], ["value"], keepdims=1)], "else", [], output
        ),
    }
    nodes = [
        helper.make_node("Cast", ["rate"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Equal", ["whole", "limit"], ["taken"]),
        helper.make_node("If", ["taken"], ["y"], **branches),
    ]
    return models.model(
        nodes,
        {"data": (2,), "rate": shape},
        {"y": ("k",)},
        {"limit": np.array(16)},
        kinds={"rate": kind},
    )


def output_at(rate: int, shape: tuple[int, ...]) -> Array:
    """Return the output of a model whose rate is fixed."""
    network = clean(rated(shape), {"rate": (rate,)})
    assert [*network.inputs] == ["data"]
    assert network.values == {"rate": rate}
    assert f"fixed rate to the value {rate}" in network.notes
    return run(network.model, {"data": _DATA})[0]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_value_chooses_the_branch(shape: tuple[int, ...]) -> None:
    """The input is a constant of the network."""
    np.testing.assert_array_equal(output_at(16, shape), [2.0, 4.0])
    np.testing.assert_array_equal(output_at(8, shape), 2.0)
    np.testing.assert_array_equal(output_at(0, shape), 2.0)


def cached(shape: tuple[int | str, ...]) -> onnx.ModelProto:
    """Return a model that doubles its data with a cache and reduces them without one."""
    model = rated(shape, TensorProto.BOOL)
    cast, equal, branch = model.graph.node
    branch.input[0] = "rate"
    model.graph.node.remove(cast)
    model.graph.node.remove(equal)
    return model


@pytest.mark.parametrize("shape", [(), (1,), ("n",)])
def test_a_truth_value_chooses_the_branch(shape: tuple[int | str, ...]) -> None:
    """It is not a shape, of one element either."""
    for value, expected in ((True, [2.0, 4.0]), (False, [2.0])):
        network = clean(cached(shape), {"rate": (value,)})

        assert network.values == {"rate": value}
        assert f"fixed rate to the value {str(value).lower()}" in network.notes
        np.testing.assert_array_equal(run(network.model, {"data": _DATA})[0], expected)


def test_the_refusal_of_a_branch_suggests_a_truth_value() -> None:
    """A number would be read as a shape."""
    with pytest.raises(ModelError, match=r"for example rate=true, or export"):
        clean(cached((1,)))


def test_truth_values_of_other_inputs_are_refused() -> None:
    """Numbers, and inputs of several elements, do not have them."""
    with pytest.raises(ModelError, match="does not have the value true"):
        clean(rated((1,)), {"rate": (True,)})
    with pytest.raises(ModelError, match=r"rate=false is a truth value.* shape \(2\)"):
        clean(cached((2,)), {"rate": (False,)})


def test_truth_values_come_back_from_workers() -> None:
    """A number would be another value for an input of the shape (1,)."""
    loaded = LoadedModel(
        *("m", "0" * 64, ModelFile("m.onnx", "onnx", {}), {}, (), Source("m.onnx")),
        values={"a": True, "b": 1},
    )

    values = decode(encode(loaded), LoadedModel).values

    assert values["a"] is True
    assert values["b"] is not True


def of_a_batch() -> onnx.ModelProto:
    """Return a model whose rate has one element for each item of the batch of its data."""
    model = rated(("n",))
    model.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("data", TensorProto.FLOAT, ("n", 2))
    )
    return model


def test_the_size_of_a_batch_tells_values_from_shapes() -> None:
    """An input of a batch of 1 takes a value; of a larger one, it takes a shape."""
    network = clean(of_a_batch(), {"data": (1, 2), "rate": (16,)})

    assert network.values == {"rate": 16}
    assert {name: spec.shape for name, spec in network.inputs.items()} == {"data": (1, 2)}
    np.testing.assert_array_equal(run(network.model, {"data": _DATA[None]})[0], [[2.0, 4.0]])


def test_unnamed_dimensions_are_not_shared() -> None:
    """The first of the data says nothing of the number of rates."""
    requested = {"data": (1, 2), "rate": (16,)}

    for dim, values in (("n", {"rate": 16}), ("?", {})):
        assert split_values({"data": (dim, 2), "rate": (dim,)}, requested, {})[1] == values


@pytest.mark.parametrize("n", [1, 3])
def test_the_size_of_a_batch_is_a_shape(n: int) -> None:
    """It is not a value."""
    with pytest.raises(ModelError, match="rate"):
        clean(of_a_batch(), {"data": (n, 2), "rate": (n,)})


def test_a_number_contradicts_a_larger_batch() -> None:
    """It can only be a shape."""
    with pytest.raises(ModelError, match="'n'"):
        clean(of_a_batch(), {"data": (2, 2), "rate": (16,)})


def test_the_size_of_a_bucket_tells_values_from_shapes() -> None:
    """It counts more than the shape of another input."""
    requested = {"data": (1, 2), "rate": (16,)}

    for size, values in ((1, {"rate": 16}), (4, {})):
        declared = {"data": ("n", 2), "rate": ("n",)}
        assert split_values(declared, requested, {"n": size})[1] == values


def test_the_refusal_says_what_to_give() -> None:
    """The number is one that the model compares with; a shape is not a value."""
    message = r"its input 'rate'.* for example rate=16 \(1 is read as the shape of 'rate'\),"
    for given in ({}, {"rate": (1,)}):
        with pytest.raises(ModelError, match=message) as caught:
            clean(rated((1,)), given)
        assert caught.value.code == "data-dependent-shape"


@pytest.mark.parametrize(("shape", "number"), [((1,), "NUMBER"), ((), "1")])
def test_the_shape_of_an_input_is_not_suggested_as_its_value(
    shape: tuple[int, ...], number: str
) -> None:
    """The refusal would be the same after the suggestion."""
    proto = rated(shape)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(1), "limit"))

    with pytest.raises(ModelError, match=f"for example rate={number}[, ]"):
        clean(proto)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TensorProto.BOOL, 16),
        (TensorProto.INT64, 2**64),
        (TensorProto.UINT8, -1),
        (TensorProto.FLOAT, 2**24 + 1),
        (TensorProto.FLOAT16, 10**30),
        (TensorProto.DOUBLE, 10**400),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_value_must_be_of_the_type(kind: int, value: int) -> None:
    """A number that the type cannot hold is refused."""
    with pytest.raises(
        ModelError, match=f"which does not have the value {str(value)[:9]}"
    ) as caught:
        clean(rated((), kind), {"rate": (value,)})

    assert caught.value.code == "input-shape"


@pytest.mark.parametrize("limit", [np.inf, np.nan, 0.5])
def test_no_value_is_suggested_that_cannot_be_given(limit: float) -> None:
    """Values of the command line are whole numbers."""
    proto = rated((), TensorProto.FLOAT)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32(limit), "limit"))
    cast, equal, _ = proto.graph.node
    equal.input[0] = "rate"
    proto.graph.node.remove(cast)

    with pytest.raises(ModelError, match="for example rate=NUMBER,"):
        clean(proto)


def test_peers_run_the_model_with_the_value(tmp_path: Path) -> None:
    """Their file has the constant, and the name of the model says so."""
    path = tmp_path / "rated.onnx"
    onnx.save(rated(()), path)

    original = write_original(
        str(path), {"data": ((2,), "float32")}, None, str(tmp_path), {"rate": 16}
    )

    assert original.description == "rated.onnx, not cleaned, rate=16"
    assert [*original.inputs] == ["data"]
    outputs = run(Path(original.path).read_bytes(), {"data": _DATA})
    np.testing.assert_array_equal(outputs[0], [2.0, 4.0])

"""A cleaned model computes the same outputs with fewer operators and reproducible bytes."""

import subprocess
import sys
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.networks.models import LIGHT, QUICK, SLOW, Array, difference, model, run
from tuner.errors import ModelError
from tuner.networks import weights
from tuner.networks.load import load_network
from tuner.networks.onnx import onnx_file
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.simplifying import simplify


def operators(data: bytes) -> Counter[str]:
    """Count the operators of a serialised model."""
    return Counter(node.op_type for node in onnx.load_from_string(data).graph.node)


@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(pytest.param(name, marks=pytest.mark.slow("tens of seconds a model")) for name in SLOW),
    ],
)
def test_light_models_keep_their_outputs(name: str) -> None:
    """Outputs with random weights agree to 1e-3."""
    original = onnx_file.read(LIGHT / f"light_{name}.onnx")
    assert weights.is_degenerate(original)
    randomised = weights.randomise_weights(original, seed=1)

    network = clean(randomised)

    (data,) = network.inputs
    (output,) = network.outputs.values()
    rng = np.random.default_rng(0)
    feeds = {data: rng.standard_normal(network.inputs[data].shape, dtype=np.float32)}
    expected = run(randomised.SerializeToString(), feeds)[0]
    actual = run(network.model, feeds)[0]
    assert expected.shape == output.shape
    assert difference(actual, expected) < 1e-3
    assert np.isfinite(expected).all()
    assert expected.std() > 0.1 * abs(expected.mean())
    other = run(network.model, {data: rng.random(feeds[data].shape, dtype=np.float32)})[0]
    assert difference(other, expected) > 0.05
    left = operators(network.model)
    assert not left["Dropout"] + left["Mul"]
    assert left["Add"] <= operators(randomised.SerializeToString())["Sum"]
    assert name == "densenet121" or not left["BatchNormalization"]


def random(*shape: int) -> Array:
    """Return float32 values from 0.5 to 1.5, valid for any input of a batch norm."""
    return np.random.default_rng(len(shape)).uniform(0.5, 1.5, shape).astype(np.float32)


def check_folding(proto: onnx.ModelProto, expected: set[str]) -> None:
    """Check that cleaning leaves these operators and the outputs."""
    network = clean(proto)
    rng = np.random.default_rng(0)
    feeds = {k: rng.standard_normal(s.shape, dtype=np.float32) for k, s in network.inputs.items()}
    before, after = run(proto.SerializeToString(), feeds), run(network.model, feeds)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-4)
    assert set(operators(network.model)) == expected


NORM = {f"n{i}": random(8) for i in range(4)}
CHAIN = [
    helper.make_node("BatchNormalization", ["x", *NORM], ["a"]),
    helper.make_node("Mul", ["scale", "a"], ["b"]),
    helper.make_node("Add", ["b", "shift"], ["c"]),
    helper.make_node("Sub", ["one", "c"], ["d"]),
    helper.make_node("Div", ["d", "scale"], ["y"]),
]
CONSTANTS = {**NORM, "scale": random(8, 1, 1), "shift": random(1, 8, 1, 1), "one": random(1)}


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (helper.make_node("Conv", ["data", "w", "bias"], ["x"]), (8, 4, 3, 3)),
        (helper.make_node("Conv", ["data", "w"], ["x"], group=4), (8, 1, 3, 3)),
        (helper.make_node("ConvTranspose", ["data", "w"], ["x"]), (4, 8, 3, 3)),
        (helper.make_node("ConvTranspose", ["data", "w", "bias"], ["x"], group=2), (4, 4, 3, 3)),
    ],
)
def test_a_chain_folds_into_a_convolution(layer: onnx.NodeProto, shape: tuple[int, ...]) -> None:
    """Batch norm, scale, shift, difference and quotient fold, with constants on either side."""
    constants = {**CONSTANTS, "w": random(*shape), "bias": random(8)}
    proto = model([layer, *CHAIN], {"data": (2, 4, 9, 9)}, {"y": (2, 8, "h", "w")}, constants)
    check_folding(proto, {layer.op_type})


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (helper.make_node("Gemm", ["data", "w", "bias"], ["x"], beta=0.5, alpha=2.0), (4, 8)),
        (helper.make_node("Gemm", ["data", "w"], ["x"], transB=1), (8, 4)),
        (helper.make_node("MatMul", ["data", "w"], ["x"]), (4, 8)),
    ],
)
def test_a_batch_norm_folds_into_a_matrix_product(
    layer: onnx.NodeProto, shape: tuple[int, ...]
) -> None:
    """The bias is scaled with the weights; a MatMul becomes a Gemm with a bias."""
    constants = {**NORM, "w": random(*shape), "bias": random(8)}
    norm = helper.make_node("BatchNormalization", ["x", *NORM], ["y"])
    check_folding(model([layer, norm], {"data": (2, 4)}, {"y": (2, 8)}, constants), {"Gemm"})


def test_scales_fold_into_a_batch_norm() -> None:
    """Scales fold into a batch norm without a convolution before it, as in DenseNet."""
    chain = [*CHAIN[:-2], helper.make_node("Relu", ["c"], ["y"])]
    proto = model(chain, {"x": (2, 8, 5, 5)}, {"y": (2, 8, 5, 5)}, CONSTANTS)
    check_folding(proto, {"BatchNormalization", "Relu"})


def test_unsafe_folds_are_left_out() -> None:
    """A constant along the width, a value with two uses, and a division by the data stay."""
    conv = helper.make_node("Conv", ["data", "w"], ["x"])
    constants = {"w": random(8, 4, 1, 1), "width": random(8), "one": random(1)}
    for nodes, left in (
        ([helper.make_node("Mul", ["x", "width"], ["y"])], {"Conv", "Mul"}),
        ([helper.make_node("Add", ["x", "width"], ["y"])], {"Conv", "Add"}),
        ([helper.make_node("Div", ["one", "x"], ["y"])], {"Conv", "Div"}),
        (
            [
                helper.make_node("Mul", ["x", "one"], ["z"]),
                helper.make_node("Sub", ["x", "z"], ["y"]),
            ],
            {"Conv", "Mul", "Sub"},
        ),
    ):
        shapes = {"y": (1, 8, 8, 8)}
        check_folding(model([conv, *nodes], {"data": (1, 4, 8, 8)}, shapes, constants), left)


def test_an_output_is_never_folded_away() -> None:
    """The convolution's result stays readable."""
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["x"]),
        helper.make_node("BatchNormalization", ["x", *NORM], ["y"]),
    ]
    outputs = {"x": (1, 8, 5, 5), "y": (1, 8, 5, 5)}
    constants = {**NORM, "w": random(8, 4, 1, 1)}
    proto = model(nodes, {"data": (1, 4, 5, 5)}, outputs, constants)
    check_folding(proto, {"Conv", "BatchNormalization"})


def test_the_hash_ignores_metadata(capfd: pytest.CaptureFixture[str]) -> None:
    """Producer, documentation and metadata do not count; nothing is printed."""
    first = model([helper.make_node("Relu", ["data"], ["y"])], {"data": (2,)}, {"y": (2,)})
    second = onnx.ModelProto.FromString(first.SerializeToString())
    second.producer_name = "another"
    second.doc_string = second.graph.doc_string = second.graph.node[0].doc_string = "text"
    second.metadata_props.add(key="date", value="today")
    second.graph.name = "other"

    assert clean(first, name="a").sha256 == clean(second, name="b").sha256
    assert capfd.readouterr() == ("", "")
    assert second.producer_name == "another"


def test_the_hash_is_the_same_in_every_process() -> None:
    """Python's hash seed, which orders sets, does not affect the bytes."""
    path = LIGHT / "light_shufflenet.onnx"
    script = (
        "from tuner.networks.load import load_network;"
        f"print(load_network({str(path)!r}, random_weights=0).sha256)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )

    assert done.stdout.strip() == load_network(str(path), random_weights=0).sha256


def test_an_input_of_strings_is_refused() -> None:
    """Inputs must be tensors of numbers."""
    proto = model([helper.make_node("Identity", ["data"], ["y"])], {"data": (2,)}, {"y": (2,)})
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.STRING
    with pytest.raises(ModelError, match="'data' is not a tensor of numbers"):
        clean(proto)


def test_a_scaled_projection_of_one_token_keeps_its_operators() -> None:
    """Every value is computed where a fusion of onnxslim drops the product that a reshape reads."""
    nodes = [
        helper.make_node("MatMul", ["data", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Mul", ["sum", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "shape"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["y"], perm=[0, 2, 1, 3]),
    ]
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.random((8, 8), np.float32),
        "b": rng.random(8, np.float32),
        "scale": np.array(0.5, np.float32),
        "shape": np.array([1, 1, -1, 4]),
    }
    proto = model(nodes, {"data": (1, 1, 8)}, {"y": (1, 2, 1, 4)}, constants)
    feeds = {"data": rng.random((1, 1, 8), np.float32)}

    network = clean(proto)

    onnx.checker.check_model(onnx.load_from_string(network.model))
    expected = run(proto.SerializeToString(), feeds)[0]
    assert difference(run(network.model, feeds)[0], expected) < 1e-6


def test_operators_that_the_checker_does_not_know_are_kept() -> None:
    """ONNX Runtime writes some of its own operators into ONNX's domain; the rest is simplified."""
    nodes = [
        helper.make_node("Identity", ["data"], ["same"]),
        helper.make_node("SimplifiedLayerNormalization", ["same", "scale"], ["y"], axis=-1),
    ]
    made = model(nodes, {"data": (2, 4)}, {"y": (2, 4)}, {"scale": np.ones(4, np.float32)})

    simplified, notes = simplify(made)

    assert [node.op_type for node in simplified.graph.node] == ["SimplifiedLayerNormalization"]
    assert not notes

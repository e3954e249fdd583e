"""Float64 and other roundings decide where outputs differ from those of a peer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.tuner.networks import models
from tuner.compile.bench.agreement import OutputCheck, OutputPair, Outputs, decide
from tuner.library.arrays import Array
from tuner.peers.exact import onnx_float64, torch_float64
from tuner.peers.exact.rounding import Rounding

_TYPES = {
    "f": TensorProto.FLOAT,
    "i": TensorProto.INT64,
    "u": TensorProto.UINT8,
    "b": TensorProto.BOOL,
}


def floats(*values: float) -> Array:
    """Return a row of float32."""
    return np.array([values], np.float32)


def answers(
    folder: Path, nodes: Sequence[onnx.NodeProto], feed: Array, **weights: Array
) -> Iterator[Outputs]:
    """Yield the outputs ``y`` of a network of ``x`` in float64, and with eight other roundings."""
    model = models.model(nodes, {"x": feed.shape}, {"y": None}, weights)
    path = folder / "model.onnx"
    onnx.save(model, path)
    for seed in range(9):
        yield onnx_float64.run(str(path), {"x": feed}, Rounding("float32", seed) if seed else None)


def check(actual: Array, expected: Array, outputs: Iterator[Outputs]) -> OutputCheck:
    """Compare one output."""
    return decide([OutputPair("y", actual, expected, "float32")], outputs)[0]


@pytest.mark.parametrize(
    ("place", "agrees"), [(0, True), (1, True), (2, False)], ids=["tie", "exact", "smaller"]
)
@pytest.mark.parametrize("operator", ["ArgMax", "TopK"])
def test_either_of_two_scores_that_are_a_rounding_apart_is_the_largest(
    operator: str, place: int, agrees: bool, tmp_path: Path
) -> None:
    """The second is larger by 2**-25, and the third smaller by a hundredth."""
    scores = np.array([[1.0, 1.0, 0.99], [0.0, 2.0**-25, 0.0]], np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s"])]
    if operator == "ArgMax":
        nodes += [helper.make_node("ArgMax", ["s"], ["y"], axis=1)]
    else:
        nodes += [helper.make_node("TopK", ["s", "k"], ["v", "y"], axis=-1)]
    outputs = answers(tmp_path, nodes, floats(1.0, 1.0), w=scores, k=np.array([1]))

    result = check(np.array([[place]]), np.array([[3]]), outputs)

    assert result.agrees is agrees
    assert result.n_near_ties == int(agrees)


def test_what_is_looked_up_at_a_near_tie_may_be_any_other_value(tmp_path: Path) -> None:
    """The values at two places have nothing in common."""
    weights = np.array([[1.0, 1.0, 0.5], [0.0, 2.0**-25, 0.0]], np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("ArgMax", ["s"], ["i"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "i"], ["y"], axis=1),
    ]
    table = floats(-40.0, 700.0, 3.0)

    for value, agrees in ((-40.0, True), (700.0, True), (3.0, False), (650.0, False)):
        outputs = answers(tmp_path, nodes, floats(1.0, 1.0), w=weights, table=table)
        assert check(floats(value), floats(-1.0), outputs).agrees is agrees


def test_a_small_probability_is_right_if_float64_says_so(tmp_path: Path) -> None:
    """A single element has no spread; a peer may be off by a hundredth."""
    nodes = [helper.make_node("Sigmoid", ["x"], ["y"])]
    exact = 1.0 / (1.0 + np.exp(13.5))
    feed, peer = floats(-13.5), floats(exact * 1.05)

    assert check(floats(exact * 1.00001), peer, answers(tmp_path, nodes, feed)).agrees
    assert not check(floats(exact * 1.1), peer, answers(tmp_path, nodes, feed)).agrees


def test_what_is_left_of_large_numbers_has_their_roundings(tmp_path: Path) -> None:
    """One minus a number near one is known to 6e-8, and not to a share of itself."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Sub", ["one", "s"], ["y"]),
    ]
    feed, one, exact = floats(14.0), np.ones(1, np.float32), 1.0 / (1.0 + np.exp(14.0))

    for error, agrees in ((6e-8, True), (-6e-8, True), (2e-6, False)):
        outputs = answers(tmp_path, nodes, feed, one=one)
        assert check(floats(exact + error), floats(exact + 3e-6), outputs).agrees is agrees


def test_rows_that_a_near_tie_adds_are_compared_with_a_rounding(tmp_path: Path) -> None:
    """The sum exceeds one by 2**-25, which float32 cannot hold."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("Greater", ["s", "one"], ["g"]),
        helper.make_node("NonZero", ["g"], ["y"]),
    ]
    weights = np.array([[1.0, 2.0], [2.0**-25, 0.0]], np.float32)
    one = np.ones(1, np.float32)
    few, many = np.array([[0], [1]]), np.array([[0, 0], [0, 1]])

    for actual, expected in ((few, many), (many, few)):
        outputs = answers(tmp_path, nodes, floats(1.0, 1.0), w=weights, one=one)
        assert check(actual, expected, outputs).agrees
    outputs = answers(tmp_path, nodes, floats(1.0, 1.0), w=weights, one=one)
    assert not check(many[:, :0], many, outputs).agrees


def test_truth_values_and_codes_follow_a_rounding(tmp_path: Path) -> None:
    """A code is one of the two around 2.5; a truth value of a clear comparison is exact."""
    nodes = [
        helper.make_node("Mul", ["x", "third"], ["s"]),
        helper.make_node("QuantizeLinear", ["s", "step", "zero"], ["y"]),
    ]
    third, step, zero = np.float32(1 / 3), np.float32(0.1), np.uint8(0)
    weights: dict[str, Array] = {
        "third": np.array(third),
        "step": np.array(step),
        "zero": np.array(zero),
    }
    code = np.array([[0]], np.uint8)

    for value, agrees in ((2, True), (3, True), (4, False)):
        outputs = answers(tmp_path, nodes, floats(0.75), **weights)
        assert check(code + np.uint8(value), code, outputs).agrees is agrees
    nodes = [helper.make_node("Greater", ["x", "third"], ["y"])]
    for value in (True, False):
        outputs = answers(tmp_path, nodes, floats(0.75), third=np.array([third]))
        assert check(np.array([[value]]), np.array([[not value]]), outputs).agrees is value


def test_exact_results_are_not_rounded(tmp_path: Path) -> None:
    """A quotient of whole numbers has no rounding that its floor could follow."""
    nodes = [
        helper.make_node("Div", ["x", "three"], ["q"]),
        helper.make_node("Floor", ["q"], ["y"]),
    ]
    three = np.array([3.0], np.float32)
    outputs = answers(tmp_path, nodes, floats(6.0), three=three)

    assert not check(floats(1.0), floats(2.0), outputs).agrees


def test_without_float64_a_single_element_has_the_error_of_one() -> None:
    """Its scale is unknown; that of an output with a spread is known."""
    tiny, other = floats(1.4e-6), floats(1.5e-6)

    assert check(tiny, other, iter(())).agrees
    assert not check(tiny, floats(2e-6), iter(())).agrees
    row = floats(1.0e-6, 1.4e-6, 1.7e-6)
    assert not check(row, row[:, ::-1], iter(())).agrees


def test_other_types_stay_a_difference(tmp_path: Path) -> None:
    """Float64 says nothing about the dtype of an output."""
    outputs = answers(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], floats(1.0))

    assert check(floats(1.0), floats(1.0).astype("f8"), outputs).problem


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16", "quantised"])
def test_roundings_are_of_the_precision(precision: str) -> None:
    """A third is moved by few units of the last place, and a copy is not."""
    dtype = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}.get(precision, np.float32)
    third = np.full(1000, 1 / 3)
    rounding = Rounding(precision, 1)
    rounded = rounding.round(third, rounding.move(third))

    assert np.array_equal(rounded.astype(dtype).astype("f8"), rounded)
    assert 1 < len(set(rounded.tolist())) < 8
    assert np.array_equal(rounding.round(rounded, rounding.move(rounded)), rounded)


@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_programs_of_torch_are_computed_in_float64(tmp_path: Path) -> None:
    """Casts to float32 within the program are those of float64; a mean has no axes."""
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> tuple[Any, Any, Any]:
            scores = torch.softmax(x.half().float() * 3.0, dim=-1)
            return scores, scores.argmax(dim=-1), x.mean() * x

    x = torch.tensor([[0.5, 0.5, -2.0]])
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Model(), (x,)), path)
    exact, place, scaled = torch_float64.run(str(path), {"x": x.numpy()}, None)
    rounded, _, moved = torch_float64.run(str(path), {"x": x.numpy()}, Rounding("float32", 1))

    powers = np.exp(3.0 * x.numpy().astype("f8"))
    np.testing.assert_allclose(exact, powers / powers.sum(), rtol=1e-14)
    assert 0.0 < np.abs(rounded - exact).max() < 1e-6
    assert 0.0 < np.abs(moved - scaled).max() < 1e-6
    assert place.tolist() == [0]

"""Outputs are compared one by one, each element by the tolerance of the dtype."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from tuner.compile.bench.agreement import TOLERANCES, compare_output, spread_of
from tuner.library.arrays import Array

_INF, _NAN = np.inf, np.nan


def floats(values: list[float]) -> Array:
    """Return an array of float32."""
    return np.array(values, np.float32)


def draw(dtype: str = "float32", scale: float = 1.0) -> Array:
    """Return 1,000 normal values."""
    return (np.random.default_rng(0).standard_normal(1000) * scale).astype(dtype)


def changed(array: Array, index: int, value: float) -> Array:
    """Return a copy with one other element."""
    copy = array.copy()
    copy[index] = value
    return copy


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1.0, _NAN], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, _NAN]),
        ([1.0, 5.0], [1.0, _INF]),
        ([9.0, _INF], [1.0, _INF]),
        ([1.0, -_INF], [1.0, _INF]),
        ([1.0, _NAN], [1.0, _INF]),
        ([_INF, 2.0], [1.0, 2.0]),
    ],
)
def test_nan_and_infinity_must_be_where_the_peer_has_them(
    actual: list[float], expected: list[float]
) -> None:
    """An output that is not finite hides no difference, of itself or of other elements."""
    check = compare_output("y", floats(actual), floats(expected), "float32")

    assert not check.agrees
    assert check.n_differing == 1
    assert check.worst > 1.0


def test_equal_nan_and_infinities_agree() -> None:
    """They are not errors, and the other elements are compared all the same."""
    values = floats([_NAN, _INF, -_INF, 1.0, 2.0])

    assert compare_output("y", values, values, "float32").agrees
    check = compare_output("y", changed(values, 4, 2.1), values, "float32")
    assert (check.n_differing, check.n_not_finite) == (1, 0)
    assert check.absolute_error == pytest.approx(0.1, rel=1e-4)


def test_small_output_is_not_excused_by_large_elements_elsewhere() -> None:
    """The tolerance follows the spread of the output itself, without its filling."""
    scores = draw(scale=1e-3)
    masked = np.concatenate([np.full(1000, -1e9, np.float32), scores])
    wrong = np.concatenate([np.full(1000, -1e9, np.float32), scores[::-1]])

    assert compare_output("y", masked, masked, "float32").agrees
    assert compare_output("y", wrong, masked, "float32").n_differing > 900


def test_spread_leaves_out_the_smallest_and_largest() -> None:
    """Zeros of a Relu and masks do not count; few values count all."""
    assert spread_of(floats([-1e9, -1e9, 1.0, 2.0, 3.0, 50.0])) == pytest.approx(np.std([1, 2, 3]))
    assert spread_of(floats([1.0, 3.0])) == 1.0
    assert spread_of(floats([_NAN, _INF])) == 0.0


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_tolerance_belongs_to_the_dtype(dtype: str) -> None:
    """An error of a third of the allowed one agrees, of three times differs."""
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    expected = draw("float64").astype(numpy_dtype)
    peer = expected.astype("float32") if dtype == "bfloat16" else expected
    allowed = TOLERANCES[dtype].of_spread * spread_of(expected.astype("float64"))

    for share, agrees in ((1 / 3, True), (3.0, False)):
        near_zero = int(np.abs(expected.astype("float64")).argmin())
        actual = expected.astype("float64")
        actual[near_zero] += share * allowed
        check = compare_output("y", actual.astype(numpy_dtype), peer, dtype)
        assert check.agrees is agrees


def test_coarser_network_widens_the_tolerance_of_a_float32_output() -> None:
    """A float16 network that casts its output to float32 keeps the errors of float16."""
    expected = draw()
    actual = expected + np.float32(0.02)

    assert not compare_output("y", actual, expected, "float32").agrees
    assert compare_output("y", actual, expected, "float16").agrees
    assert not compare_output("y", actual.astype("f8"), expected.astype("f8"), "float32").agrees


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_whole_numbers_must_be_equal(dtype: str) -> None:
    """The check counts how many differ, without overflow."""
    expected = np.array([0, 1, 0, 1]).astype(dtype)
    actual = np.array([1, 1, 1, 1]).astype(dtype)

    assert compare_output("y", expected, expected, "float32").agrees
    check = compare_output("y", actual, expected, "float32")
    assert (check.n_differing, check.absolute_error) == (2, 1.0)
    limits = np.array([np.iinfo("int64").max]), np.array([np.iinfo("int64").min])
    assert compare_output("y", *limits, "float32").absolute_error == pytest.approx(2.0**64)


@pytest.mark.parametrize(
    ("expected", "problem"),
    [(np.zeros((2, 1), "f4"), "shape"), (np.zeros(2, "f8"), "dtype"), (np.zeros(2, "i8"), "dtype")],
)
def test_other_shape_or_dtype_is_a_difference(expected: Array, problem: str) -> None:
    """Neither broadcasts nor casts."""
    check = compare_output("y", np.zeros(2, "f4"), expected, "float32")

    assert not check.agrees
    assert problem in check.problem


def test_empty_and_constant_outputs() -> None:
    """An empty output agrees; a constant one is noted, and tiny rounding of zero agrees."""
    empty = np.zeros((0, 3), "f4")

    assert compare_output("y", empty, empty, "float32").agrees
    zeros = np.zeros(8, "f4")
    check = compare_output("y", changed(zeros, 0, 1e-40), zeros, "float32")
    assert check.agrees
    assert check.is_constant
    assert not compare_output("y", changed(zeros, 0, 1e-6), zeros, "float32").agrees


def test_small_results_of_a_sigmoid_have_the_error_of_one() -> None:
    """ONNX Runtime's sigmoid of -15 is wrong in the first digit; the exact one agrees with it."""
    runtime = pytest.importorskip("onnxruntime")
    node = helper.make_node("Sigmoid", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = runtime.InferenceSession(model.SerializeToString())
    logits = draw(scale=3.0) - np.float32(20.0)
    (peer,) = session.run(None, {"x": logits})
    exact = (1 / (1 + np.exp(-logits.astype("f8")))).astype("f4")

    assert compare_output("y", exact, peer, "float32", is_sigmoid=True).agrees
    assert not compare_output("y", exact, peer, "float32").agrees
    wrong = changed(exact, 0, exact[0] + 1e-6)
    assert not compare_output("y", wrong, peer, "float32", is_sigmoid=True).agrees
    wide = compare_output("y", exact.astype("f8"), peer.astype("f8"), "float64", is_sigmoid=True)
    assert not wide.agrees
    zeros = np.zeros(1000, "f4")
    tiny = changed(zeros, 0, 1e-7)
    assert compare_output("y", zeros, tiny, "float32", is_sigmoid=True).is_constant
    assert not compare_output("y", zeros, tiny, "float32").is_constant

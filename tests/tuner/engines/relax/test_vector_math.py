"""Elementary functions as vector instructions: accuracy, special values, no calls of libm."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import te

from tests.tuner.engines.relax.conftest import Array
from tuner.engines.base import TargetInfo
from tuner.engines.relax import cpu_codegen
from tuner.engines.relax.targets import make_target

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]

_SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-42, 88.8, -104.5], "float32")
# Units in the last place.
_ERRORS = {"exp": 1.5, "log": 1.5, "tanh": 2.0, "sigmoid": 3.0, "erf": 8.0}


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


_REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}


def compile_function(name: str, n: int, target: TargetInfo, dtype: str = "float32") -> object:
    """Compile a vectorised kernel that applies a function to n numbers."""
    data = te.placeholder((n,), dtype, name="data")
    result = te.compute((n,), lambda i: getattr(te, name)(data[i]), name="result")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([data, result]))
    (loop,) = schedule.get_loops(schedule.get_sblock("result"))
    _, vector = schedule.split(loop, [None, 16])
    schedule.vectorize(vector)
    return cpu_codegen.compile_kernels(schedule.mod, make_target(target.spec))


def evaluate(kernel: object, x: Array) -> Array:
    """Call a compiled kernel."""
    result = tvm.runtime.empty(x.shape, str(x.dtype))
    kernel(tvm.runtime.tensor(x), result)  # type: ignore[operator]
    value: Array = result.numpy()
    return value


def points(name: str, n: int) -> Array:
    """Return arguments over the whole range in which the function is neither 0 nor constant."""
    rng = np.random.default_rng(0)
    wide = rng.uniform(-87.0, 88.0, n // 2)
    narrow = rng.uniform(-5.0, 5.0, n - n // 2) * rng.random(n - n // 2) ** 4
    x = np.concatenate([wide, narrow]).astype("float32")
    return np.exp(x) if name == "log" else x


@pytest.mark.parametrize("name", _REFERENCES)
def test_a_function_is_accurate_to_the_last_places(name: str, target: TargetInfo) -> None:
    """The result lies within a few units in the last place of that in float64."""
    x = points(name, 2**16)

    actual = evaluate(compile_function(name, x.size, target), x).astype("float64")

    expected = _REFERENCES[name](x.astype("float64"))
    units = np.spacing(np.abs(expected).astype("float32")).astype("float64")
    assert np.max(np.abs(actual - expected) / units) < _ERRORS[name]


@pytest.mark.parametrize("name", _REFERENCES)
def test_special_values_are_those_of_libm(name: str, target: TargetInfo) -> None:
    """Infinities, NaN, zero and subnormal arguments give what libm gives."""
    x = np.tile(_SPECIAL, 2)

    actual = evaluate(compile_function(name, x.size, target), x)

    with np.errstate(all="ignore"):
        expected = _REFERENCES[name](x.astype("float64")).astype("float32")
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-38)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))


def test_float16_is_computed_in_float32(target: TargetInfo) -> None:
    """The only error is the rounding of the result."""
    x = np.linspace(-8.0, 8.0, 1024).astype("float16")

    actual = evaluate(compile_function("exp", x.size, target, "float16"), x)

    expected = np.exp(x.astype("float32"))
    np.testing.assert_allclose(actual, expected, rtol=2.0**-10, atol=2.0**-24)


@pytest.mark.parametrize("name", _REFERENCES)
def test_no_element_calls_libm(name: str, target: TargetInfo) -> None:
    """The code has no call of a scalar function."""
    code = compile_function(name, 64, target).inspect_source("asm")  # type: ignore[attr-defined]

    assert f"{name}f" not in code

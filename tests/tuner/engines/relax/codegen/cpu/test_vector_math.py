"""Elementary functions as vector instructions: accuracy, special values, no calls of libm."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.tuner.engines.relax.conftest import Array
from tuner.engines.base import TargetInfo
from tuner.engines.relax.codegen.cpu import cpu_codegen, vector_math
from tuner.engines.relax.codegen.cpu.vector_functions import FUNCTIONS
from tuner.engines.relax.target.targets import make_target

# The ends of the range of exp and the numbers beside them are among them.
_SPECIAL = np.array(
    [
        *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-42, 88.8, -104.5),
        *(-3e38, 3e38, 1e-8, -1e-8),
        *(88.72283, 88.72284, 88.72285, -87.33654, -87.33655, -87.33),
    ],
    "float32",
)
_N_POINTS = 2**16
# Units in the last place.
_ERRORS = {
    **{"exp": 1.5, "exp2": 2.0, "log": 1.5, "log2": 2.5, "log10": 2.5},
    **{"tanh": 2.0, "sigmoid": 3.0, "erf": 8.0, "sinh": 3.0, "cosh": 3.0},
    **{"asinh": 4.0, "acosh": 3.0, "atanh": 3.0, "log1p": 2.5},
    **{"sin": 1.5, "cos": 1.5, "tan": 3.0, "asin": 2.5, "acos": 2.5, "atan": 2.5},
}


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


_REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "log1p": np.log1p,
}
_NESTED_REFERENCES: dict[str, Callable[[Array], Array]] = {
    **_REFERENCES,
    "rsqrt": lambda x: x**-0.5,
}


@lru_cache(maxsize=32)
def compile_function(name: str, spec: str, dtype: str = "float32") -> object:
    """Compile a vectorised kernel that applies a function to ``_N_POINTS`` numbers."""
    data = te.placeholder((_N_POINTS,), dtype, name="data")
    function = getattr(tirx, name)
    result = te.compute(data.shape, lambda i: function(data[i]), name="result")
    return _compile([data], result, spec)


def _compile(inputs: list[te.Tensor], result: te.Tensor, spec: str, lanes: int = 16) -> object:
    schedule = tvm.s_tir.Schedule(te.create_prim_func([*inputs, result]))
    (loop,) = schedule.get_loops(schedule.get_sblock("result"))
    _, vector = schedule.split(loop, [None, lanes])
    schedule.vectorize(vector)
    return cpu_codegen.compile_kernels(schedule.mod, make_target(spec))


@lru_cache(maxsize=1)
def compile_power(spec: str) -> object:
    """Compile a vectorised kernel that raises ``_N_POINTS`` numbers to as many powers."""
    x, y = (te.placeholder((_N_POINTS,), "float32", name=name) for name in "xy")
    result = te.compute(x.shape, lambda i: tirx.power(x[i], y[i]), name="result")
    return _compile([x, y], result, spec)


def evaluate(kernel: object, *arguments: Array) -> Array:
    """Call a compiled kernel."""
    result = tvm.runtime.empty(arguments[0].shape, str(arguments[0].dtype))
    kernel(*map(tvm.runtime.tensor, arguments), result)  # type: ignore[operator]
    value: Array = result.numpy()
    return value


def points(name: str) -> Array:
    """Return arguments over the whole range in which the function is neither 0 nor constant."""
    rng = np.random.default_rng(0)
    half = _N_POINTS // 2
    wide = rng.uniform(-87.0, 88.0, half)
    narrow = rng.uniform(-5.0, 5.0, half) * rng.random(half) ** 4
    x = np.concatenate([wide, narrow]).astype("float32")
    below_one = np.nextafter(np.float32(1.0), np.float32(0.0))
    if name in ("asin", "acos", "atanh"):
        x = np.sin(x).clip(-below_one, below_one)
    if name == "acosh":
        x = np.cosh(x)
    if name.startswith("log"):
        x = np.expm1(x).clip(-below_one) if name == "log1p" else np.exp(x)
    return x


@pytest.mark.parametrize("name", _REFERENCES)
def test_a_function_is_accurate_to_the_last_places(name: str, target: TargetInfo) -> None:
    """The result lies within a few units in the last place of that in float64."""
    x = points(name)

    actual = evaluate(compile_function(name, target.spec), x).astype("float64")

    expected = _REFERENCES[name](x.astype("float64"))
    units = np.spacing(np.abs(expected).astype("float32")).astype("float64")
    assert np.max(np.abs(actual - expected) / units) < _ERRORS[name]


@pytest.mark.parametrize("name", _REFERENCES)
def test_special_values_are_those_of_libm(name: str, target: TargetInfo) -> None:
    """Infinities, NaN, zeros of both signs and subnormal arguments give what libm gives."""
    x = np.resize(_SPECIAL, _N_POINTS)
    if name in ("sin", "cos", "tan"):
        # Larger angles count as this one.
        x = np.where(np.isfinite(x), np.clip(x, -(2.0**30), 2.0**30), x).astype("float32")

    actual = evaluate(compile_function(name, target.spec), x)

    with np.errstate(all="ignore"):
        expected = _REFERENCES[name](x.astype("float64")).astype("float32")
    # The smallest number that is not subnormal.
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1.2e-38)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    real = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[real]), np.signbit(expected[real]))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_large_angles_keep_their_place_in_the_period(name: str, target: TargetInfo) -> None:
    """Positions of a thousand tokens and phases of a million samples lose no digits."""
    rng = np.random.default_rng(0)
    x = (rng.uniform(-1, 1, _N_POINTS) * 10 ** rng.uniform(2, 8, _N_POINTS)).astype("float32")

    actual = evaluate(compile_function(name, target.spec), x)

    expected = _REFERENCES[name](x.astype("float64"))
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-7)


def test_a_power_is_rounded_once(target: TargetInfo) -> None:
    """Powers from subnormal to huge lie within a little more than half a unit of float64's."""
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-87.0, 88.0, _N_POINTS)).astype("float32")
    y = (rng.uniform(-1.0, 1.0, x.size) ** 5 * 40).astype("float32")

    actual = evaluate(compile_power(target.spec), x, y).astype("float64")

    with np.errstate(over="ignore", under="ignore"):
        exact = np.power(x.astype("float64"), y.astype("float64"))
        rounded = exact.astype("float32")
    finite = np.isfinite(rounded)
    units = np.spacing(rounded[finite]).astype("float64")
    assert np.max(np.abs(actual[finite] - exact[finite]) / units) < 0.7
    np.testing.assert_array_equal(np.isinf(actual), np.isinf(rounded))


def test_special_powers_are_those_of_libm(target: TargetInfo) -> None:
    """Zeros, infinities, NaN, negative numbers and whole exponents give what C gives."""
    special = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1e-42, 2.5, 2.0**24 + 2]
    values = np.array([*special, np.inf, -np.inf, np.nan], "float32")
    x, y = (np.resize(array, _N_POINTS) for array in np.meshgrid(values, values))

    actual = evaluate(compile_power(target.spec), x, y)

    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    # The smallest number that is not subnormal.
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1.2e-38)
    real = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[real]), np.signbit(expected[real]))


def test_float16_is_computed_in_float32(target: TargetInfo) -> None:
    """The only error is the rounding of the result."""
    x = np.linspace(-8.0, 8.0, _N_POINTS).astype("float16")

    actual = evaluate(compile_function("exp", target.spec, "float16"), x)

    expected = np.exp(x.astype("float32"))
    np.testing.assert_allclose(actual, expected, rtol=2.0**-10, atol=2.0**-24)


@pytest.mark.parametrize("name", _REFERENCES)
def test_no_element_calls_libm(name: str, target: TargetInfo) -> None:
    """The code has no call of a scalar function."""
    code = compile_function(name, target.spec).inspect_source("asm")  # type: ignore[attr-defined]

    assert f"{name}f" not in code


def test_no_power_calls_libm(target: TargetInfo) -> None:
    """Powers are vector instructions, too."""
    code = compile_power(target.spec).inspect_source("asm")  # type: ignore[attr-defined]

    assert "powf" not in code


@pytest.mark.parametrize("name", ["sigmoid", "erf"])
def test_bounds_do_not_multiply_an_argument(name: str) -> None:
    """TVM visits every occurrence of an argument, which may be a long expression."""
    argument = tirx.Var("argument", "float32")

    expression = str(getattr(vector_math, name)(argument))

    assert expression.count("argument") < 30


def test_nested_functions_are_compiled(target: TargetInfo) -> None:
    """A function of functions is right, and its code short enough to be compiled at all."""
    data = te.placeholder((64,), "float32", name="data")

    def mish(x: Any) -> Any:
        return x * tirx.tanh(tirx.log(tirx.exp(x) + tirx.const(1.0, "float32")))

    kernel = _compile(
        [data], te.compute((64,), lambda i: mish(data[i]), name="result"), target.spec
    )

    x = np.linspace(-3, 3, 64, dtype="float32")
    expected = x * np.tanh(np.log1p(np.exp(x)))
    np.testing.assert_allclose(evaluate(kernel, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("erf", "exp", "sigmoid")
        else pytest.param(name, marks=pytest.mark.slow("nested by the same means"))
        for name in sorted({*FUNCTIONS} - {"pow"})
    ],
)
def test_functions_of_functions_are_compiled(name: str, target: TargetInfo) -> None:
    """Six levels take a moment, where TVM would multiply the time by that of each."""
    data = te.placeholder((64,), "float32", name="data")
    half, quarter = (tirx.const(value, "float32") for value in (0.5, 0.25))

    def nested(x: Any) -> Any:
        for _ in range(6):
            x = half * x + quarter * getattr(tirx, name)(x)
        return x

    kernel = _compile(
        [data], te.compute((64,), lambda i: nested(data[i]), name="result"), target.spec
    )

    x = np.linspace(0.1, 0.9, 64, dtype="float32")
    expected = x.astype("float64")
    with np.errstate(invalid="ignore"):
        for _ in range(6):
            expected = 0.5 * expected + 0.25 * _NESTED_REFERENCES[name](expected)
    code = kernel.inspect_source("ll")  # type: ignore[attr-defined]
    assert "ptr @__TVMBackendAllocWorkspace" not in code
    np.testing.assert_allclose(evaluate(kernel, x), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lanes", [1, 16])
def test_functions_under_a_condition_and_of_half_precision_are_nested(
    lanes: int, target: TargetInfo
) -> None:
    """A load outside of the data, of which the result is not needed, is not made."""
    data = te.placeholder((64,), "float16", name="data")
    zero = tirx.const(0.0, "float16")

    def nested(i: Any) -> Any:
        inner = tirx.if_then_else(i < 48, tirx.sin(tirx.exp(data[i])), zero)
        return tirx.exp(tirx.sin(inner))

    kernel = _compile([data], te.compute((64,), nested, name="result"), target.spec, lanes)

    x = np.linspace(0.1, 0.9, 64, dtype="float16")
    inner = np.where(np.arange(64) < 48, np.sin(np.exp(x.astype("float64"))), 0.0)
    np.testing.assert_allclose(evaluate(kernel, x), np.exp(np.sin(inner)), rtol=4e-3)

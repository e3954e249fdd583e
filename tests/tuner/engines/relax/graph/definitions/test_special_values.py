"""Operators at NaN, infinities, zeros and the limits of types."""

from functools import lru_cache

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.tuner.engines.relax.networks import run_lowered
from tests.tuner.engines.relax.operator_cases import Case, combine
from tests.tuner.engines.relax.special_cases import BY_NUMPY, SPECIAL
from tests.tuner.networks.models import Array
from tuner.engines.base import TargetInfo
from tuner.engines.relax.codegen.cpu import cpu_codegen
from tuner.engines.relax.target.targets import make_target

_EXPECTED = {each.name: arrays for each, arrays in BY_NUMPY}
_CASES = [*SPECIAL, *(each for each, _ in BY_NUMPY)]
_CHOICES = [np.nan, np.inf, -np.inf, 0.0, 2.0]
_TOLERANCES = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-7}


@lru_cache(maxsize=1)
def outputs(target: str) -> dict[str, tuple[list[Array], list[Array]]]:
    """Return the outputs of all cases, and those of ONNX Runtime, by name."""
    proto, feeds, expected = combine(_CASES, 20)
    actual = iter(run_lowered(proto, feeds, target))
    references = iter(expected)
    return {
        each.name: ([next(actual) for _ in each.outputs], [next(references) for _ in each.outputs])
        for each in _CASES
    }


@pytest.mark.parametrize("each", _CASES, ids=lambda each: each.name)
def test_outputs_agree(target: TargetInfo, each: Case) -> None:
    """Outputs are those of ONNX Runtime, or of NumPy where it loses NaN."""
    returned, references = outputs(target.spec)[each.name]

    for actual, expected in zip(returned, _EXPECTED.get(each.name, references), strict=True):
        tolerance = _TOLERANCES.get(str(actual.dtype), 0.0)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=1e-38, strict=True)


@pytest.mark.parametrize("is_vector", [False, True], ids=["scalars", "vectors"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_computed_numbers_keep_nan(
    target: TargetInfo, name: str, is_vector: bool
) -> None:
    """NaN stays whichever operand it is in, and whether operands are loads or computed."""
    extreme = getattr(te, name)
    x, y, z = (te.placeholder((24,), "float32", name=each) for each in "xyz")
    result = te.compute(
        (24,),
        lambda i: extreme(extreme(x[i], y[i]), extreme(z[i] + x[i], tirx.const(1.0, "float32"))),
        "result",
    )
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y, z, result]))
    if is_vector:
        _, lanes = schedule.split(*schedule.get_loops(schedule.get_sblock("result")), [None, 8])
        schedule.vectorize(lanes)
    kernel = cpu_codegen.compile_kernels(schedule.mod, make_target(target.spec))
    rng = np.random.default_rng(0)
    numbers = [rng.choice(_CHOICES, 24).astype("float32") for _ in range(3)]
    tensors = [tvm.runtime.tensor(each) for each in numbers]
    actual = tvm.runtime.empty((24,), "float32")

    kernel(*tensors, actual)

    choose = np.maximum if name == "max" else np.minimum
    a, b, c = numbers
    with np.errstate(invalid="ignore"):
        expected = choose(choose(a, b), choose(c + a, np.float32(1)))
    np.testing.assert_array_equal(actual.numpy(), expected)


def _quantised(
    target: TargetInfo, numbers: Array, limits: tuple[float, float], zero: float, n_lanes: int
) -> tuple[Array, str]:
    """Return the bytes of 24 numbers that are clipped and rounded, and the code for it."""
    x = te.placeholder((24,), "float32", name="x")
    low, high = (tirx.const(limit, "float32") for limit in limits)
    rounded = te.compute((24,), lambda i: te.nearbyint(te.max(te.min(x[i], high), low)), "rounded")
    codes = te.compute((24,), lambda i: (rounded[i] + zero).astype("uint8"), "codes")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, codes]))
    schedule.compute_inline(schedule.get_sblock("rounded"))
    _, lanes = schedule.split(*schedule.get_loops(schedule.get_sblock("codes")), [None, n_lanes])
    schedule.vectorize(lanes)
    kernel = cpu_codegen.compile_kernels(schedule.mod, make_target(target.spec))
    actual = tvm.runtime.empty((24,), "uint8")
    kernel(tvm.runtime.tensor(numbers), actual)
    return actual.numpy(), kernel.inspect_source("asm")


@pytest.mark.parametrize("zero", [0.0, 7.0])
@pytest.mark.parametrize("n_lanes", [1, 8, 24])
def test_rounded_numbers_become_bytes(target: TargetInfo, n_lanes: int, zero: float) -> None:
    """Any number becomes the byte that its clipped value is rounded to, by a saturating packing."""
    numbers = np.array([-np.inf, -3e38, -1e9, 1e9, 3e38, np.inf, *np.arange(-2, 7), 254.5, 255.5])
    numbers = np.resize(np.concatenate([numbers, numbers + 0.5]), 24).astype("float32")

    actual, code = _quantised(target, numbers, (-zero, 255.0 - zero), zero, n_lanes)

    expected = np.round(np.clip(numbers, -zero, 255 - zero)) + zero
    np.testing.assert_array_equal(actual, expected.astype("uint8"))
    # What AVX-512 does in one step takes AVX2 two.
    assert n_lanes == 1 or "packuswb" in code or "vpmovusdb" in code


def test_nan_becomes_a_limit_above_zero(target: TargetInfo) -> None:
    """As of a Relu before a quantisation whose zero point is not 0."""
    actual, _ = _quantised(target, np.full(24, np.nan, "float32"), (10.0, 200.0), 0.0, 8)

    assert set(actual.tolist()) <= {10, 200}


def test_a_reduction_in_parts_starts_at_infinity(target: TargetInfo) -> None:
    """Parts of a maximum keep minus infinity and NaN, in vectors and one by one."""
    x = te.placeholder((3, 64), "float32", name="x")
    k = te.reduce_axis((0, 64), "k")
    largest = te.compute((3,), lambda i: te.max(x[i, k], axis=k), "largest")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, largest]))
    _, loop = schedule.get_loops(schedule.get_sblock("largest"))
    _, lanes = schedule.split(loop, [None, 8])
    part = schedule.rfactor(lanes, 1)
    _, steps, lanes = schedule.get_loops(part)
    schedule.reorder(lanes, steps)
    schedule.reorder(steps, lanes)
    schedule.vectorize(lanes)
    kernel = cpu_codegen.compile_kernels(schedule.mod, make_target(target.spec))
    rows = np.full((3, 64), -np.inf, "float32")
    rows[1, 13] = np.nan
    rows[2, 63] = np.finfo("float32").min
    actual = tvm.runtime.empty((3,), "float32")

    kernel(tvm.runtime.tensor(rows), actual)

    np.testing.assert_array_equal(actual.numpy(), rows.max(1))

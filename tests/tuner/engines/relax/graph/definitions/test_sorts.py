"""Sorts for GPUs, whose definitions a CPU runs."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.backend import DispatchSortScan
from tvm.relax.transform import LegalizeOps

from tests.tuner.engines.relax.networks import UNOPTIMISED, run_network
from tuner.engines.relax.graph.definitions import sorts
from tuner.engines.relax.schedules.gpu import block_limits
from tuner.engines.relax.target.targets import describe_target, make_target


def _topk(shape: tuple[int, ...], dtype: str, *arguments: object) -> tvm.IRModule:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.topk(x, *arguments, dtype="int64")))
    return builder.get()


def _draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return numbers of which many are equal, and some NaN, infinite or minus zero."""
    x = np.random.default_rng(0).integers(-40, 40, shape).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        for first, number in enumerate((np.nan, np.inf, -np.inf, -0.0)):
            x.flat[first::9] = number
    return x


@pytest.mark.parametrize(
    ("shape", "axis", "k", "dtype", "largest"),
    [
        ((3, 7), -1, 3, "float32", True),
        ((5, 4, 6), 1, 2, "float16", False),
        # In parts, over two and three levels; the last part is not full.
        ((2, 200), 1, 5, "float64", True),
        ((1, 1000), 1, 9, "float16", False),
        ((130, 3), 0, 4, "int8", True),
        # All, which is a sort.
        ((2, 50), 1, 50, "int64", False),
        # None.
        ((0, 5), 1, 2, "float32", True),
        ((2, 0), 1, 0, "float32", True),
    ],
)
def test_first_elements_are_those_of_a_stable_sort(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    axis: int,
    k: int,
    dtype: str,
    largest: bool,
) -> None:
    """NaN is the largest number, and of equal ones the first comes first, as in ONNX Runtime."""
    monkeypatch.setattr(sorts, "_PART", 16)
    monkeypatch.setattr(sorts, "_WHOLE", 32)
    module = _topk(shape, dtype, k, axis, "both", largest)
    with UNOPTIMISED:
        module = LegalizeOps(sorts.SORTS_ON_GPUS)(module)
    x = _draw(shape, dtype)

    values, indices = run_network(module, x)

    numbers = np.where(np.isnan(x), np.inf, x), np.isnan(x)
    signs = [-each.astype("float64") if largest else each for each in numbers]
    expected = np.take(np.lexsort(signs, axis=axis), range(k), axis)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis))


def test_launches_that_depend_on_a_loop_are_not_checked() -> None:
    """TVM's check cannot read those of its own sort, for rows that take too long to count."""
    target = make_target(describe_target("cuda:sm_90").spec)
    with target:
        module = LegalizeOps(sorts.SORTS_ON_GPUS)(_topk((64, 100_000), "float16", 50, 1, "both"))
        module = DispatchSortScan()(module)

    (sort,) = (each for name, each in module.functions_items() if "topk" in name.name_hint)

    assert block_limits.are_kept(tvm.IRModule({"main": sort}), target)

"""Functions of torch keep their digits near 0, their special values and their operands."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tuner.engines.relax.frontend.torch_programs import Functions, check_results

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]

_pool2d, _pool3d = torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d


def test_functions_keep_their_digits_and_scales(tmp_path: Path) -> None:
    """Sums with 1 would lose all digits of the smallest arguments; zeros keep their sign."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.0, 88.0, -200.0, 1e30]
    small = np.geomspace(1e-30, 1.0, 99)
    x = torch.from_numpy(np.concatenate([special, small, -small]).astype("float32"))
    functions: Functions = {
        **{"log1p": torch.log1p, "expm1": torch.expm1},
        "signs of zeros": lambda x: tuple(
            f(x[:2]).reciprocal() for f in (torch.log1p, torch.expm1)
        ),
        # Torch writes all of them as one operator with two scales.
        **{"selu": torch.selu, "celu": torch.nn.CELU(2.0), "elu": torch.nn.ELU(0.5)},
    }

    check_results(functions, tmp_path, x)


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(-6, 6, dtype=torch.int32),
        torch.arange(-6, 6),
        torch.tensor([-torch.inf, -1e30, -2.5, -0.0, 0.0, 0.5, 2.5, 1e30, torch.inf, torch.nan]),
    ],
    ids=lambda x: str(x.dtype),
)
def test_a_clamp_may_have_one_bound(x: torch.Tensor, tmp_path: Path) -> None:
    """Infinity for the other one became the least whole number; NaN stays NaN."""
    functions: Functions = {
        "lower": lambda x: (x.clamp(min=-2), x.clamp_min(1)),
        "upper": lambda x: (x.clamp(max=2), x.clamp_max(1)),
        "both": lambda x: (x.clamp(-2, 2), x.clamp(2, -2)),
    }

    check_results(functions, tmp_path, x)


def test_bounds_of_a_clamp_may_have_another_dtype(tmp_path: Path) -> None:
    """Results are floating-point numbers if a bound is one."""
    bounds = torch.linspace(-2, 2, 12)
    functions: Functions = {
        "number": lambda x: x.clamp(min=-0.5),
        "tensors": lambda x: (x.clamp(min=torch.tensor(1)), x.clamp(max=bounds)),
        "both": lambda x: x[:1].clamp(min=bounds, max=torch.tensor(1)),
    }

    check_results(functions, tmp_path, torch.arange(-6, 6, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32], ids=str)
def test_sums_keep_their_factor(dtype: torch.dtype, tmp_path: Path) -> None:
    """The second operand of a sum and a difference may have one."""
    functions: Functions = {
        "sum": lambda x: (torch.add(x, x[0], alpha=3), x + x[0]),
        "difference": lambda x: (torch.sub(x, x[0], alpha=3), torch.sub(x, 2, alpha=3)),
        "reversed difference": lambda x: torch.rsub(x, x[0], alpha=3),
        "sum of two dtypes": lambda x: torch.add(x.float(), x.int(), alpha=0.5),
        "difference of two dtypes": lambda x: torch.sub(x.int(), x.float(), alpha=0.5),
    }

    check_results(functions, tmp_path, torch.arange(-6, 6).reshape(3, 4).to(dtype))


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (torch.int32, [-0.5, 0.5, 1.0, 1e20, torch.inf]),
        (torch.int64, [-0.5, 0.5, 1.0]),
        (torch.bool, [-0.5, 0.5, 1, 2]),
        (torch.float32, [-0.5, 0.5, 1]),
    ],
    ids=str,
)
def test_numbers_that_a_dtype_lacks_are_compared(
    dtype: torch.dtype, numbers: list[float], tmp_path: Path
) -> None:
    """Numbers in comparisons with whole numbers were truncated."""
    functions: Functions = {
        name: lambda x, name=name: tuple(getattr(torch, name)(x, number) for number in numbers)
        for name in ("lt", "le", "gt", "ge", "eq", "ne")
    }

    check_results(functions, tmp_path, torch.arange(-1, 3).to(dtype))


def test_averages_keep_their_divisor(tmp_path: Path) -> None:
    """Sums over windows may be divided by another number than that of their elements."""
    functions: Functions = {
        "windows": lambda x: _pool2d(x, 2, divisor_override=3),
        "padded windows": lambda x: _pool2d(x, (3, 2), 2, 1, divisor_override=1),
        "last windows": lambda x: _pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5),
        "padding that does not count": lambda x: _pool2d(
            x, 2, 2, 1, count_include_pad=False, divisor_override=5
        ),
        "three axes": lambda x: _pool2d(x[0], 2, 3, divisor_override=5),
        "volumes": lambda x: _pool3d(x, 2, divisor_override=3),
        "mean": lambda x: _pool2d(x, 3, 2, 1),
    }
    x = torch.from_numpy(np.random.default_rng(0).random((2, 3, 8, 7), "float32"))

    check_results(functions, tmp_path, x)

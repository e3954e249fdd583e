"""Functions of torch keep their digits near 0, their special values and their operands."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tuner.engines.relax.frontend.torch_programs import Functions, check_groups
from tuner.engines.relax.frontend import torch_program

_pool2d, _pool3d = torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d
_SMALL = np.geomspace(1e-30, 1.0, 99)
_SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.0, 88.0, -200.0, 1e30]
_NUMBERS = torch.from_numpy(np.concatenate([_SPECIAL, _SMALL, -_SMALL]).astype("float32"))
_ENDS = torch.tensor([-np.inf, -1e30, -2.5, -0.0, 0.0, 0.5, 2.5, 1e30, np.inf, np.nan])
_WHOLE = torch.arange(-6, 6, dtype=torch.int32)
_ONE, _RAMP = torch.tensor(1), torch.linspace(-2, 2, 12)
_IMAGES = torch.from_numpy(np.random.default_rng(0).random((2, 3, 8, 7), "float32"))

# Sums with 1 would lose all digits of the smallest arguments; zeros keep their sign.
_DIGITS: Functions = {
    **{"log1p": torch.log1p, "expm1": torch.expm1},
    "signs of zeros": lambda x: tuple(f(x[:2]).reciprocal() for f in (torch.log1p, torch.expm1)),
    # Torch writes all of them as one operator with two scales.
    **{"selu": torch.selu, "celu": torch.nn.CELU(2.0), "elu": torch.nn.ELU(0.5)},
}
# Infinity for the other bound became the least whole number; NaN stays NaN.
_CLAMPS: Functions = {
    "lower": lambda x: (x.clamp(min=-2), x.clamp_min(1)),
    "upper": lambda x: (x.clamp(max=2), x.clamp_max(1)),
    "both": lambda x: (x.clamp(-2, 2), x.clamp(2, -2)),
}
# Results are floating-point numbers if a bound is one.
_MIXED_CLAMPS: Functions = {
    "number": lambda x: x.clamp(min=-0.5),
    "tensors": lambda x: (
        *(x.clamp(min=_ONE), x.clamp(max=_RAMP), x[:1].clamp(min=_RAMP, max=_ONE)),
    ),
}
# The second operand of a sum and a difference may have a factor.
_SUMS: Functions = {
    "sum": lambda x: (torch.add(x, x[0], alpha=3), x + x[0]),
    "difference": lambda x: (torch.sub(x, x[0], alpha=3), torch.sub(x, 2, alpha=3)),
    "reversed difference": lambda x: torch.rsub(x, x[0], alpha=3),
    "sum of two dtypes": lambda x: torch.add(x.float(), x.int(), alpha=0.5),
    "difference of two dtypes": lambda x: torch.sub(x.int(), x.float(), alpha=0.5),
}
# Sums over windows may be divided by another number than that of their elements.
_AVERAGES: Functions = {
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
# A new tensor may have another dtype than the one that it is made by.
_NEW: Functions = {
    "ones": lambda x: (x.new_ones([], dtype=torch.bool) & (x > 0), x.new_ones(2) + x[:1]),
    "zeros": lambda x: (x.new_zeros(4, dtype=torch.float32) + x, x.new_zeros([2, 3]) + x[0]),
    "alike": lambda x: (
        *(torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x, dtype=torch.int32)),
        x.new_full((3,), 2, dtype=torch.float32) + x[0],
    ),
}


def _comparisons(*numbers: float) -> Functions:
    """Return comparisons with numbers, which were truncated to whole ones."""
    return {
        name: lambda x, name=name: tuple(getattr(torch, name)(x, number) for number in numbers)
        for name in ("lt", "le", "gt", "ge", "eq", "ne")
    }


def test_functions_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and dtypes are those of torch, without a way by ONNX."""
    monkeypatch.delattr(torch_program, "as_onnx")
    rows, few = torch.arange(-6, 6).reshape(3, 4), torch.arange(-1, 3)

    check_groups(
        tmp_path,
        (_DIGITS, _NUMBERS),
        *((_CLAMPS, x) for x in (_WHOLE, _WHOLE.long(), _ENDS)),
        (_MIXED_CLAMPS, _WHOLE),
        *((_SUMS, rows.to(dtype)) for dtype in (torch.int32, torch.float32)),
        (_comparisons(-0.5, 1e20), few.int()),
        (_comparisons(0.5), few),
        (_comparisons(0.5, 2), few.bool()),
        (_AVERAGES, _IMAGES),
        (_NEW, few),
    )

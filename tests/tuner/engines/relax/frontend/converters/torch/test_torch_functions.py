"""Functions of torch keep their digits near 0, their special values and their operands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tests.tuner.engines.relax.networks import UNOPTIMISED
from tuner.engines.base import ModelFile
from tuner.engines.relax.frontend.importer import import_model
from tuner.engines.relax.graph.pipeline import lower

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]


class Applied(torch.nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the function."""
        result: torch.Tensor = getattr(torch, self.name)(x)
        return result


@pytest.mark.parametrize("name", ["log1p", "expm1"])
def test_functions_keep_their_digits(name: str, tmp_path: Path) -> None:
    """Sums with 1 would lose all digits of the smallest arguments."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.0, 88.0, -200.0, 1e30]
    small = np.geomspace(1e-30, 1.0, 99)
    x = np.concatenate([special, small, -small]).astype("float32")
    program = torch.export.export(Applied(name), (torch.from_numpy(x),))
    path = tmp_path / "m.pt2"
    torch.export.save(program, path)

    module = import_model(ModelFile(str(path), "pt2", {"x": (x.shape, "float32")}))

    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    actual = machine["main"](tvm.runtime.tensor(x))[0].numpy()
    expected = Applied(name)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(actual[:2]), np.signbit(x[:2]))


@pytest.mark.parametrize("unit", [torch.nn.SELU(), torch.nn.CELU(2.0), torch.nn.ELU(0.5)])
def test_exponential_units_keep_their_scales(unit: torch.nn.Module, tmp_path: Path) -> None:
    """Torch writes all of them as one operator with two scales."""
    x = torch.cat([torch.linspace(-4.0, 4.0, 33), torch.tensor([-1e-6, 1e-6, torch.nan])])
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(unit, (x,)), path)

    module = import_model(ModelFile(str(path), "pt2", {"input": ((36,), "float32")}))

    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    actual = machine["main"](tvm.runtime.tensor(x.numpy()))[0].numpy()
    np.testing.assert_allclose(actual, unit(x).numpy(), rtol=1e-5, strict=True)


class Listed(torch.nn.Module):  # type: ignore[misc]
    """Functions of one tensor as a module, which has an output for each."""

    def __init__(self, functions: list[Callable[[torch.Tensor], torch.Tensor]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Apply the functions."""
        return tuple(function(x) for function in self.functions)


def _assert_equal(
    functions: list[Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor, folder: Path
) -> None:
    """Check that the functions of a lowered program have the results of torch."""
    path, dtype = folder / "m.pt2", str(x.dtype).removeprefix("torch.")
    module = Listed(functions)
    torch.export.save(torch.export.export(module, (x,)), path)
    file = ModelFile(str(path), "pt2", {"x": (tuple(x.shape), dtype)})
    lowered = lower(file, UNOPTIMISED, is_whole=True).module
    machine = relax.VirtualMachine(tvm.compile(lowered, UNOPTIMISED), tvm.cpu())
    outputs = machine["main"](tvm.runtime.tensor(x.numpy()))
    for number, (actual, expected) in enumerate(zip(outputs, module(x), strict=True)):
        np.testing.assert_allclose(
            actual.numpy(), expected.numpy(), rtol=1e-6, err_msg=str(number), strict=True
        )


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
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.clamp(min=-2),
        lambda x: x.clamp(max=2),
        lambda x: x.clamp(-2, 2),
        lambda x: x.clamp(2, -2),
        lambda x: x.clamp_min(1),
        lambda x: x.clamp_max(1),
    ]

    _assert_equal(functions, x, tmp_path)


def test_bounds_of_a_clamp_may_have_another_dtype(tmp_path: Path) -> None:
    """Results are floating-point numbers if a bound is one."""
    bounds = torch.linspace(-2, 2, 12)
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.clamp(min=-0.5),
        lambda x: x.clamp(min=torch.tensor(1)),
        lambda x: x.clamp(max=bounds),
        lambda x: x[:1].clamp(min=bounds, max=torch.tensor(1)),
    ]

    _assert_equal(functions, torch.arange(-6, 6, dtype=torch.int32), tmp_path)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32], ids=str)
def test_sums_keep_their_factor(dtype: torch.dtype, tmp_path: Path) -> None:
    """The second operand of a sum and a difference may have one."""
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.add(x, x[0], alpha=3),
        lambda x: torch.sub(x, x[0], alpha=3),
        lambda x: torch.sub(x, 2, alpha=3),
        lambda x: torch.rsub(x, x[0], alpha=3),
        lambda x: torch.add(x.float(), x.int(), alpha=0.5),
        lambda x: torch.sub(x.int(), x.float(), alpha=0.5),
        lambda x: x + x[0],
    ]

    _assert_equal(functions, torch.arange(-6, 6).reshape(3, 4).to(dtype), tmp_path)


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (torch.int32, [-0.5, 0.5, 1.0]),
        (torch.int32, [1e20, torch.inf]),
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
    functions: list[Any] = [
        lambda x, compare=compare, number=number: compare(x, number)
        for compare in (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne)
        for number in numbers
    ]

    _assert_equal(functions, torch.arange(-1, 3).to(dtype), tmp_path)


def test_averages_keep_their_divisor(tmp_path: Path) -> None:
    """Sums over windows may be divided by another number than that of their elements."""
    pool2d, pool3d = torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: pool2d(x, 2, divisor_override=3),
        lambda x: pool2d(x, (3, 2), 2, 1, divisor_override=1),
        lambda x: pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5),
        lambda x: pool2d(x, 2, 2, 1, count_include_pad=False, divisor_override=5),
        lambda x: pool2d(x[0], 2, 3, divisor_override=5),
        lambda x: pool3d(x, 2, divisor_override=3),
        lambda x: pool2d(x, 3, 2, 1),
    ]
    x = torch.from_numpy(np.random.default_rng(0).random((2, 3, 8, 7), "float32"))

    _assert_equal(functions, x, tmp_path)

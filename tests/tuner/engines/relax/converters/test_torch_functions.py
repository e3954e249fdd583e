"""Functions of torch keep their digits near 0, their special values and their operands."""

from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tuner.engines.base import ModelFile
from tuner.engines.relax.importer import import_model

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

"""Negative indices of torch count from the end."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tuner.engines.base import ModelFile
from tuner.engines.relax.importer import import_model

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]


class Indexed(torch.nn.Module):  # type: ignore[misc]
    """A function of a tensor and indices as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Apply the function."""
        return self.function(x, index)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, i: x[:, -1] + i[-1], id="last element"),
        pytest.param(lambda x, i: x[i], id="rows"),
        pytest.param(lambda x, i: x[:, i], id="columns"),
        pytest.param(lambda x, i: x[i, i], id="elements"),
        pytest.param(lambda x, i: x[:, torch.tensor([-1, 0, -2])] * i.sum(), id="constants"),
        pytest.param(lambda x, i: x.index_put((i, i), x[0, :3]), id="written"),
    ],
)
def test_negative_indices_count_from_the_end(
    function: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    """TVM reads and writes what lies in front of the tensor."""
    x = torch.arange(20.0).reshape(4, 5)
    index = torch.tensor([-1, 2, -4])
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Indexed(function), (x, index)), path)

    module = import_model(
        ModelFile(str(path), "pt2", {"x": ((4, 5), "float32"), "index": ((3,), "int64")})
    )

    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    actual = machine["main"](tvm.runtime.tensor(x.numpy()), tvm.runtime.tensor(index.numpy()))
    actual = (actual if hasattr(actual, "numpy") else actual[0]).numpy()
    np.testing.assert_array_equal(actual, function(x, index).numpy())

"""Negative indices of torch count from the end."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tests.tuner.engines.relax.networks import UNOPTIMISED
from tuner.engines.base import ModelFile
from tuner.engines.relax.frontend.importer import import_model

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]


class Indexed(torch.nn.Module):  # type: ignore[misc]
    """A function of a tensor and indices as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Apply the function."""
        return self.function(x, index)


class Written(torch.nn.Module):  # type: ignore[misc]
    """Writes to copies of a tensor, an output for each, as a module."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Write at the indices."""
        every, order = slice(None), torch.tensor([2, 0])
        row, column, cube = x[0, :3], x[:, :1], x[:, :, None] + x[0, :3]
        return (
            _written(x, (every, index), row),
            _written(x, (every, index), column),
            _written(x, index, x[0]),
            _written(x, (index, index), x[1, 1]),
            x.index_put((index[0], index[1]), x[1, 1]),
            x.index_put((index, index), row, accumulate=True),
            _written(cube, (every, order), x[:, 3:, None]),
            _written(cube, (every, order, every), column[:, :, None]),
            _written(cube, (every, every, order), x[0, :2]),
            _written(cube, (every, order[:, None], order), column[:, :, None]),
            _written(cube, (order, order), row),
            _written(cube, (order, every, order), x[0]),
            _written(cube, order, row),
        )


def _written(x: torch.Tensor, index: object, values: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    copy[index] = values
    return copy


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, i: x[:, -1] + i[-1], id="last element"),
        pytest.param(lambda x, i: x[i], id="rows"),
        pytest.param(lambda x, i: x[:, i], id="columns"),
        pytest.param(lambda x, i: x[i, i], id="elements"),
        pytest.param(lambda x, i: x[:, torch.tensor([-1, 0, -2])] * i.sum(), id="constants"),
        pytest.param(lambda x, i: x.index_put((i, i), x[0, :3]), id="written"),
        pytest.param(
            lambda x, i: x.index_put((i[:, None], torch.tensor([2, 0])), x[0, :2]),
            id="written to each row",
        ),
        pytest.param(
            lambda x, i: x.index_put((i[:, None], torch.tensor([2, 0])), x[:3, :1], True),
            id="added to each column",
        ),
    ],
)
def test_negative_indices_count_from_the_end(
    function: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    """TVM reads and writes what lies in front of the tensor, and reads behind written values."""
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


def test_values_are_broadcast_to_axes_without_an_index(tmp_path: Path) -> None:
    """These lie in front of, behind and between the indices."""
    x, index = torch.arange(20.0).reshape(4, 5), torch.tensor([-1, 2, -4])
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Written(), (x, index)), path)

    module = import_model(
        ModelFile(str(path), "pt2", {"x": ((4, 5), "float32"), "index": ((3,), "int64")})
    )

    machine = relax.VirtualMachine(tvm.compile(module, UNOPTIMISED), tvm.cpu())
    outputs = machine["main"](tvm.runtime.tensor(x.numpy()), tvm.runtime.tensor(index.numpy()))
    for number, (actual, expected) in enumerate(zip(outputs, Written()(x, index), strict=True)):
        np.testing.assert_array_equal(actual.numpy(), expected.numpy(), str(number), strict=True)

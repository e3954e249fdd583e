"""Half precision and attention of torch are imported as they are, with torch's results."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional
from tvm import relax

from tests.tuner.engines.relax import networks
from tests.tuner.engines.relax.conftest import Array
from tuner.engines.base import ModelFile
from tuner.engines.relax.frontend import torch_program
from tuner.engines.relax.graph.definitions import nested_calls
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.target.targets import describe_target, make_target

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]


class Applied(torch.nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the function."""
        return self.function(x)


def _saved(
    function: Callable[..., torch.Tensor], x: torch.Tensor, folder: Path, *, is_core: bool = False
) -> ModelFile:
    path = folder / "m.pt2"
    program = torch.export.export(Applied(function), (x,))
    torch.export.save(program.run_decompositions() if is_core else program, path)
    dtype = str(x.dtype).removeprefix("torch.")
    return ModelFile(str(path), "pt2", {"x": (tuple(x.shape), dtype)})


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: functional.conv2d(x, _of(x, 2, 3, 2, 2)), id="convolution"),
        pytest.param(
            lambda x: functional.conv2d(x, _of(x, 2, 3, 2, 2), _of(x, 2)), id="with a bias"
        ),
        pytest.param(
            lambda x: functional.batch_norm(
                functional.conv1d(x[0], _of(x, 4, 4, 1)), *(_of(x, 4) for _ in range(4))
            ),
            id="with a norm",
        ),
        pytest.param(lambda x: x @ _of(x, 5, 2), id="product"),
        pytest.param(lambda x: functional.linear(x, _of(x, 2, 5), _of(x, 2)), id="dense layer"),
        pytest.param(
            lambda x: torch.addmm(x[0, 0, 0], x[0, 0].T, x[0, 0], alpha=2, beta=0.5), id="factors"
        ),
        pytest.param(lambda x: functional.embedding(x.argmax(-1), _of(x, 5, 2)), id="embedding"),
        pytest.param(lambda x: (x > 0).cumsum(1), id="sum of truth values"),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        (torch.float16, "llvm"),
        pytest.param(
            *(torch.bfloat16, "cuda:sm_90"),
            marks=pytest.mark.slow(
                "13 s; attention of bfloat16 is tested always, for both targets"
            ),
        ),
    ],
)
def test_half_precision_needs_no_onnx(
    function: Callable[..., torch.Tensor],
    dtype: torch.dtype,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TVM cannot add a bias of float16 to sums of float32."""
    monkeypatch.setattr(torch_program, "_import_as_onnx", None)
    x = torch.linspace(-2, 3, 60).reshape(1, 3, 4, 5).to(dtype)
    made = make_target(describe_target(target).spec, intrinsics=False)

    actual = _run(lower(_saved(function, x, tmp_path), made, is_whole=True), x)

    expected = function(x).double()
    np.testing.assert_allclose(actual, expected, rtol=2e-2, atol=2e-2, strict=True)


def _of(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, math.prod(shape)).reshape(shape).to(like)


def _run(module: tvm.IRModule, x: torch.Tensor) -> Array:
    """Return the output of a module, computed on a CPU."""
    built = tvm.compile(module, networks.UNOPTIMISED, tir_pipeline=nested_calls.PIPELINE)
    machine = relax.VirtualMachine(built, tvm.cpu())
    half = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    given = half if x.dtype == torch.bfloat16 else x.numpy()
    returned = machine["main"](tvm.runtime.tensor(given))
    output = returned if hasattr(returned, "numpy") else returned[0]
    return np.asarray(output.numpy(), "float64")


_HIDDEN = torch.zeros(1, 1, 17, 17)
_HIDDEN[..., 5:] = -torch.inf
_HIDDEN[:, :, 3] = -torch.inf


@pytest.mark.parametrize(
    ("named", "n_shared", "dtype"),
    [
        ({}, 4, torch.float16),
        ({"is_causal": True}, 4, torch.bfloat16),
        ({"scale": 0.5, "enable_gqa": True}, 2, torch.float32),
        ({"attn_mask": _HIDDEN}, 4, torch.float16),
        ({"attn_mask": _HIDDEN == 0}, 4, torch.float32),
    ],
    ids=["plain", "causal", "shared", "masked", "truth"],
)
def test_attention_is_one_kernel_of_its_type(
    named: dict[str, Any],
    n_shared: int,
    dtype: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that are masked as a whole are 0, as torch has it."""
    monkeypatch.setattr(torch_program, "_import_as_onnx", None)
    given = dict(named)
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        given["attn_mask"] = mask.to(dtype)

    def attend(x: torch.Tensor) -> torch.Tensor:
        heads = (x, x[:, -n_shared:] * 0.5, x[:, :n_shared] + 1)
        return functional.scaled_dot_product_attention(*heads, **given)

    x = torch.sin(torch.arange(2 * 4 * 17 * 16.0)).reshape(2, 4, 17, 16).to(dtype)
    file = _saved(attend, x, tmp_path)

    for target in ("llvm", "cuda:sm_90"):
        made = make_target(describe_target(target).spec, intrinsics=False)
        module = lower(file, made, is_whole=True)
        expected = attend(x).double()
        tolerance = 1e-6 if dtype == torch.float32 else 2e-2
        np.testing.assert_allclose(_run(module, x), expected, atol=tolerance, strict=True)
        names = [name.name_hint for name in module.get_global_vars()]
        assert sum("attention" in name for name in names) == 1
        assert not any("softmax" in name for name in names)


@pytest.mark.parametrize("target", ["llvm", "cuda:sm_90"])
def test_rows_without_scores_are_zero_in_programs_of_core_operators(
    target: str, tmp_path: Path
) -> None:
    """The softmax of torch tests all scores for minus infinity; rows of NaN stay."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, _HIDDEN[0, 0])

    x = torch.sin(torch.arange(2 * 17 * 16.0)).reshape(1, 2, 17, 16)
    x[0, 1, 7, 1] = torch.nan
    file = _saved(attend, x, tmp_path, is_core=True)
    made = make_target(describe_target(target).spec, intrinsics=False)
    module = lower(file, made, is_whole=True)

    np.testing.assert_allclose(_run(module, x), attend(x).double(), atol=1e-6, strict=True)
    names = [name.name_hint for name in module.get_global_vars()]
    assert not any("softmax" in name or "where" in name for name in names)

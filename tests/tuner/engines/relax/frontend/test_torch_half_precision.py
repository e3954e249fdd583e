"""Half precision and attention of torch are imported as they are, with torch's results."""

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional

from tests.tuner.engines.relax import networks
from tests.tuner.engines.relax.frontend.torch_programs import Applied, Functions, save_program
from tuner.engines.relax.frontend import torch_program
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.target.targets import describe_target, make_target


def _functions(dtype: torch.dtype) -> Functions:
    """Return functions with weights of a type."""
    shapes = [(2, 3, 2, 2), (4, 4, 1), (2, 5), (5, 2), (2,), (4,)]
    kernel, line, dense, table, pair, four = (
        torch.linspace(0.5, 1.5, math.prod(shape)).reshape(shape).to(dtype) for shape in shapes
    )
    return {
        "with a bias": lambda x: functional.conv2d(x, kernel, pair),
        "with a norm": lambda x: functional.batch_norm(
            functional.conv1d(x[0], line), four, four, four, four
        ),
        "dense layer": lambda x: functional.linear(x, dense, pair),
        "factors": lambda x: torch.addmm(x[0, 0, 0], x[0, 0].T, x[0, 0], alpha=2, beta=0.5),
        "embedding": lambda x: functional.embedding(x.argmax(-1), table),
        "sum of truth values": lambda x: (x > 0).cumsum(1),
    }


@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        (torch.float16, "llvm"),
        pytest.param(
            *(torch.bfloat16, "cuda:sm_90"),
            marks=pytest.mark.slow("attention of bfloat16 is tested always, for both targets"),
        ),
    ],
)
def test_half_precision_needs_no_onnx(
    dtype: torch.dtype, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM cannot add a bias of float16 to sums of float32."""
    monkeypatch.setattr(torch_program, "_import_as_onnx", None)
    x, functions = torch.linspace(-2, 3, 60).reshape(1, 3, 4, 5).to(dtype), _functions(dtype)

    module = lower(save_program(functions, tmp_path, x), _target(target), is_whole=True)

    _check(module, functions, x, 2e-2)


def _target(name: str) -> tvm.target.Target:
    return make_target(describe_target(name).spec, intrinsics=False)


def _check(module: tvm.IRModule, functions: Functions, x: torch.Tensor, tolerance: float) -> None:
    """Compare the outputs of a module, computed on a CPU, with those of torch."""
    half = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    outputs = networks.run_network(module, half if x.dtype == torch.bfloat16 else x.numpy())
    results = Applied(functions).results(x)
    limits: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "strict": True}
    for output, (name, (expected,)) in zip(outputs, results.items(), strict=True):
        actual = output.astype("float64")
        np.testing.assert_allclose(actual, expected.double(), err_msg=name, **limits)


_HIDDEN = torch.zeros(1, 1, 17, 17)
_HIDDEN[..., 5:] = -torch.inf
_HIDDEN[:, :, 3] = -torch.inf


def _attend(x: torch.Tensor, n_shared: int = 4, **options: Any) -> torch.Tensor:
    heads = (x, x[:, -n_shared:] * 0.5, x[:, :n_shared] + 1)
    return functional.scaled_dot_product_attention(*heads, **options)


@pytest.mark.parametrize(
    ("dtype", "target", "functions"),
    [
        (
            torch.float16,
            "llvm",
            {"plain": _attend, "masked": lambda x: _attend(x, attn_mask=_HIDDEN.to(x.dtype))},
        ),
        (torch.bfloat16, "cuda:sm_90", {"causal": lambda x: _attend(x, is_causal=True)}),
        (
            torch.float32,
            "cuda:sm_90",
            {
                "shared": lambda x: _attend(x, 2, scale=0.5, enable_gqa=True),
                "truth": lambda x: _attend(x, attn_mask=_HIDDEN == 0),
            },
        ),
    ],
    ids=["float16", "bfloat16", "float32"],
)
def test_attention_is_one_kernel_of_its_type(
    dtype: torch.dtype,
    target: str,
    functions: Functions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that are masked as a whole are 0, as torch has it."""
    monkeypatch.setattr(torch_program, "_import_as_onnx", None)
    x = torch.sin(torch.arange(2 * 4 * 17 * 16.0)).reshape(2, 4, 17, 16).to(dtype)
    file = save_program(functions, tmp_path, x)

    module = lower(file, _target(target), is_whole=True)

    _check(module, functions, x, 1e-6 if dtype == torch.float32 else 2e-2)
    names = [name.name_hint for name in module.get_global_vars()]
    assert sum("attention" in name for name in names) == len(functions)
    assert not any("softmax" in name for name in names)


def test_rows_without_scores_are_zero_in_programs_of_core_operators(tmp_path: Path) -> None:
    """The softmax of torch tests all scores for minus infinity; rows of NaN stay."""
    x = torch.sin(torch.arange(2 * 17 * 16.0)).reshape(1, 2, 17, 16)
    x[0, 1, 7, 1] = torch.nan
    functions: Functions = {
        "y": lambda x: functional.scaled_dot_product_attention(x, x, x, _HIDDEN[0, 0])
    }
    file = save_program(functions, tmp_path, x, is_core=True)

    module = lower(file, _target("llvm"), is_whole=True)

    _check(module, functions, x, 1e-6)
    names = [name.name_hint for name in module.get_global_vars()]
    assert not any("softmax" in name or "where" in name for name in names)


def test_numbers_beyond_half_precision(tmp_path: Path) -> None:
    """Numbers that float16 has none of keep their size, as in a mask that adds -1e9."""
    x = torch.tensor([[0.0, 1e-5, 0.5, 3.0], [1.0, 0.0, 1.0, 60000.0]]).half()
    functions: Functions = {
        "mask": lambda x: torch.softmax(x[0] + (1.0 - x[1].clamp(0, 1)) * -1e9, -1),
        "product": lambda x: x * -1e9,
        "quotient": lambda x: x / 1e6,
        "factor": lambda x: torch.add(x, x, alpha=1e-6),
    }

    module = lower(save_program(functions, tmp_path, x), _target("llvm"), is_whole=True)

    expected = Applied(functions)(x)
    for mine, each in zip(networks.run_network(module, x.numpy()), expected, strict=True):
        np.testing.assert_allclose(mine, each.numpy(), rtol=1e-3, strict=True)

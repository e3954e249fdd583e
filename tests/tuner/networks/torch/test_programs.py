"""Programs with operators that other libraries register are read without them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tuner.errors import ModelError
from tuner.networks.torch.archives import declared_inputs
from tuner.networks.torch.programs import load_program

pytestmark = pytest.mark.filterwarnings("ignore")

_ROWS = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
_ENDS = torch.tensor([2, 2, 5])


def _products(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    result, start = torch.zeros(len(rows), weights.shape[2]), 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        result[start:end], start = rows[start:end] @ weight, end
    return result


@contextmanager
def _registered(name: str) -> Iterator[Callable[..., Any]]:
    namespace, _, operator = name.partition("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(f"{operator}(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    library.impl(operator, _products, "CPU")
    library.impl(
        operator, lambda rows, weights, _: rows.new_empty(len(rows), weights.shape[2]), "Meta"
    )
    yield getattr(getattr(torch.ops, namespace), operator)
    library._destroy()


def _save(operator: Callable[..., Any], path: Path, n_groups: int = 3) -> torch.Tensor:
    weights = torch.randn(n_groups, 4, 5, generator=torch.Generator().manual_seed(1))

    class Network(torch.nn.Module):  # type: ignore[misc]  # torch has no types
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            product: torch.Tensor = operator(rows, weights, _ENDS)
            return product.view(-1)

    torch.export.save(torch.export.export(Network(), (_ROWS,)), path)
    return _products(_ROWS, weights, _ENDS).view(-1)


@pytest.mark.parametrize("n_rows", [7, 2])
def test_products_of_groups_are_those_of_their_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_rows: int
) -> None:
    """Rows behind the last group are 0, for more rows than groups and for fewer."""
    monkeypatch.setitem(globals(), "_ROWS", _ROWS[:n_rows])
    with _registered("transformers::grouped_mm_fallback") as operator:
        expected = _save(operator, tmp_path / "m.pt2")

    actual = load_program(tmp_path / "m.pt2").module()(_ROWS)

    torch.testing.assert_close(actual, expected)
    assert not hasattr(torch.ops.transformers, "grouped_mm_fallback")


def test_quantised_programs_are_those_of_torch(tmp_path: Path) -> None:
    """Scales and zeros are numbers, tensors, or follow from the range of a tensor."""
    import torch.ao.quantization.fx._decomposed

    ops = torch.ops.quantized_decomposed
    limits = (0, 255, torch.uint8)
    scales, zeros = torch.tensor([0.02, 0.01, 0.03, 0.5]), torch.tensor([3, 0, 128, 255])

    class Network(torch.nn.Module):  # type: ignore[misc]  # torch has no types
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            chosen = *ops.choose_qparams.tensor(x, 0, 255, 1e-6, torch.uint8), *limits
            return tuple(
                result
                for kind, args in (
                    ("tensor", (0.013, 100, *limits)),
                    ("tensor", chosen),
                    ("channel", (scales, zeros, 1, *limits)),
                )
                for quantised in [getattr(ops, f"quantize_per_{kind}")(x, *args)]
                for result in (
                    quantised,
                    getattr(ops, f"dequantize_per_{kind}")(quantised, *args),
                )
            )

    torch.export.save(torch.export.export(Network(), (_ROWS,)), tmp_path / "m.pt2")

    program = load_program(tmp_path / "m.pt2")

    assert not any("quantized" in str(node.target) for node in program.graph.nodes)
    for actual, expected in zip(program.module()(_ROWS), Network()(_ROWS), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_other_operators_are_named(tmp_path: Path) -> None:
    """The version of torch is not to blame."""
    with _registered("elsewhere::products") as operator:
        _save(operator, tmp_path / "m.pt2")

    with pytest.raises(
        ModelError, match=r"operator elsewhere\.products, which a library"
    ) as caught:
        declared_inputs(tmp_path / "m.pt2")

    assert caught.value.code == "unsupported-operator"

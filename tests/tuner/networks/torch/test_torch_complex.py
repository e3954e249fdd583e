"""Programs with complex numbers compute the same from real ones."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tuner.errors import ModelError
from tuner.networks.torch.torch_complex import as_real

pytestmark = pytest.mark.filterwarnings("ignore")

_PHASES = torch.polar(torch.ones(3, 5), torch.arange(15.0).reshape(3, 5))
_ROWS = torch.tensor([0, 2, 0])
_FREQUENCIES = torch.fft.fftfreq(6)


class _Applied(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("phases", _PHASES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """Apply the function."""
        return self.function(x, y, self.phases)


def _export(function: Callable[..., Any]) -> tuple[Any, tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(2, 3, n, generator=generator) for n in (5, 6))
    return torch.export.export(_Applied(function), inputs), inputs


def _transforms(x: torch.Tensor, y: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
    spectra = [
        *(torch.fft.rfft(y, norm=norm) for norm in ("backward", "ortho", "forward")),
        *(torch.fft.fft2(x), torch.fft.rfft2(x, s=(4, 8)), torch.fft.ifft(x, dim=1)),
        torch.stft(y.flatten(1), 6, 2, window=torch.ones(6), return_complex=True),
    ]
    back = [
        *(torch.fft.irfft(torch.fft.rfft(each), n=each.shape[-1] + 1) for each in (x, y)),
        torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[-2:], norm="ortho"),
        torch.fft.ifftn(torch.fft.fftn(x) * 2).real,
    ]
    return *map(torch.view_as_real, map(torch.resolve_conj, spectra)), *back


def _arithmetic(x: torch.Tensor, y: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.complex(x, y[..., 1:])
    spectrum = torch.zeros(2, 3, 6, dtype=torch.complex64)
    spectrum[..., :5] = torch.einsum("bij,kj->bkj", z, p) + 1j
    numbers = [
        *(z * p, z / p, z - x, 2 * z, z * 1j + 1, z**2, z.exp(), z.conj(), 1 / z, x * p, x * 1j),
        *(z @ p.mT, torch.cat([z, p[None]]), z.roll(1, -1), z.sum(1), torch.where(x > 0, z, p)),
        *(torch.sub(z, p, alpha=0.3), torch.add(z, x, alpha=2), torch.add(p, x, alpha=2 - 1j)),
        *(torch.sub(p, z, alpha=1j), torch.addmv(p[:, 0], z[0], p[0]), z.index_add(1, _ROWS, z)),
        torch.addmm(p[:, :3], z[0], p.mT, beta=0.5, alpha=2 + 1j),
        torch.baddbmm(p[:1] * math.nan, z.mT, p.expand(2, 3, 5), beta=0).to(torch.complex128),
        *(spectrum * _FREQUENCIES, torch.full((2,), 1 + 2j), torch.polar(x.abs(), x)),
    ]
    return *map(torch.view_as_real, map(torch.resolve_conj, numbers)), z.abs(), z.angle(), p.imag


@pytest.mark.parametrize("function", [_transforms, _arithmetic])
def test_parts_give_the_results_of_torch(function: Callable[..., Any]) -> None:
    """No value is complex any more, and the inputs keep their names."""
    program, inputs = _export(function)

    real = as_real(program)

    values = [node.meta.get("val") for node in real.graph.nodes]
    assert not any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)
    assert real.graph_signature.user_inputs == program.graph_signature.user_inputs
    for actual, expected in zip(real.module()(*inputs), program.module()(*inputs), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, _, p: x * p, "'mul' is complex: export the program with its parts"),
        (lambda x, _, p: torch.linalg.svdvals(x * p), "no formula of aten._linalg_svd"),
    ],
)
def test_what_has_no_parts_is_refused(function: Callable[..., Any], message: str) -> None:
    """The message names the output or the operator."""
    with pytest.raises(ModelError, match=message):
        as_real(_export(function)[0])


def test_only_what_is_around_tensors_is_refused() -> None:
    """Inputs by name and an output of None pass; numbers and changed buffers do not."""
    x = torch.ones(2, 8)

    class Network(torch.nn.Module):  # type: ignore[misc]  # torch has no types
        def __init__(self, *, counts: bool = False) -> None:
            super().__init__()
            self.counts = counts
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor, *, scale: Any) -> Any:
            if self.counts:
                self.count.add_(1.0)
            return torch.fft.rfft(torch.layer_norm(x, (8,))).abs() * scale, None

    def convert(network: Network, scale: Any) -> Any:
        return as_real(torch.export.export(network, (x,), {"scale": scale}))

    real = convert(Network(), torch.ones(1))
    assert len(real.graph_signature.user_inputs) == 2
    # It has a converter, which its parts would bypass.
    assert "aten.layer_norm.default" in {str(node.target) for node in real.graph.nodes}
    with pytest.raises(ModelError, match="the input 3, which is not a tensor"):
        convert(Network(), 3)
    with pytest.raises(ModelError, match="changes buffers"):
        convert(Network(counts=True), torch.ones(1))


def test_large_and_small_numbers_have_quotients() -> None:
    """Squares of the parts may be out of range where the quotient or the sign is not."""

    def function(x: torch.Tensor, _: Any, p: torch.Tensor) -> torch.Tensor:
        z = x * p
        parts = (p / z * x, z.reciprocal() * x, x / z, z.sgn(), z / (1 + 2j) / x, (1 + 2j) / z * x)
        return torch.view_as_real(torch.stack(parts))

    program, (x, y) = _export(function)
    real = as_real(program).module()
    for scale in (1.0, 1e25, 1e-25):
        inputs = (x * scale, y)
        actual, expected = (
            pytree.tree_leaves(each(*inputs))[0] for each in (real, program.module())
        )
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)

"""Padded channels change no output, and reach no operator that mixes channels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import relax_module, run_network
from tuner.engines.relax.graph.passes.convolutions.padding import choose_width, pad_channels
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import Registers

_OPS = relax.op
_AVX512, _AVX2 = Registers(32, 16), Registers(16, 8)
_SHAPE = (1, 14, 14, 58)


def _conv(x: relax.Expr, n: int, size: int = 1, groups: int = 1, seed: int = 0) -> relax.Expr:
    n_inputs = int(x.ty.shape[-1]) // groups
    weight = relax.const(draw(n, size, size, n_inputs, seed=seed) * 0.2)
    edge = size // 2
    return _OPS.nn.conv2d(
        x, weight, 1, (edge,) * 4, groups=groups, data_layout="NHWC", kernel_layout="OHWI"
    )


Make = Callable[[Callable[[relax.Expr], relax.Var], relax.Var], relax.Expr]
CASES: dict[str, Make] = {
    "two convolutions": lambda emit, x: _conv(
        emit(_OPS.nn.relu(emit(_conv(x, 58)))), 58, 3, seed=1
    ),
    "depthwise": lambda emit, x: _conv(
        emit(_conv(emit(_OPS.clip(emit(_conv(x, 58)), 0, 6)), 58, 3, groups=58, seed=1)), 24, seed=2
    ),
    "residual": lambda emit, x: _OPS.add(emit(_conv(x, 58)), emit(_conv(x, 58, 3, seed=1))),
    "residual of the input": lambda emit, x: _OPS.add(emit(_conv(x, 58)), x),
    "gate": lambda emit, x: _OPS.multiply(
        emit(_conv(x, 58)), emit(_OPS.sigmoid(emit(_conv(emit(_OPS.mean(x, [1, 2], True)), 58))))
    ),
    "quotient": lambda emit, x: _OPS.divide(
        emit(_conv(x, 58)), emit(_OPS.sigmoid(emit(_conv(x, 58, seed=3))))
    ),
    "scale before": lambda emit, x: _OPS.subtract(
        relax.const(draw(58, seed=4)), emit(_conv(x, 58))
    ),
    "mean of channels": lambda emit, x: _OPS.mean(emit(_conv(x, 58)), [3]),
    "concatenation": lambda emit, x: _OPS.concat([emit(_conv(x, 58)), x], 3),
    "products": lambda emit, x: _OPS.matmul(
        emit(_OPS.tanh(emit(_OPS.matmul(
            emit(_OPS.reshape(emit(_conv(x, 58)), (196, 58))), relax.const(draw(58, 37)))))),
        relax.const(draw(37, 7, seed=1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_padding_changes_no_output(name: str) -> None:
    """The padded network computes what the network does, and something was padded."""
    module, x = relax_module(CASES[name], _SHAPE), draw(*_SHAPE)

    padded = pad_channels(module, _AVX512)

    assert "64" in padded["main"].script()
    (actual,), (expected,) = (run_network(each, x) for each in (padded, module))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["two convolutions", "depthwise"])
def test_the_next_convolution_reads_the_padding(name: str) -> None:
    """No slice is left but that of the result."""
    script = pad_channels(relax_module(CASES[name], _SHAPE), _AVX512)["main"].script()

    assert script.count("strided_slice") == (name == "two convolutions")


@pytest.mark.parametrize(
    ("shape", "n_terms", "registers", "width"),
    [
        ((1, 28, 28, 58), 58, _AVX512, 64),
        ((1, 28, 28, 58), 58, _AVX2, 64),
        ((1, 5, 5, 1000), 512, _AVX512, 1008),
        ((60, 100), 384, _AVX2, 104),
        # Two tiles of 50 are eight vectors, short ones among them.
        ((60, 100), 384, _AVX512, 100),
        # The next convolution would multiply a third more.
        ((1, 56, 56, 24), 96, _AVX512, 24),
        ((1, 56, 56, 24), 96, _AVX2, 24),
        ((1, 56, 56, 64), 64, _AVX512, 64),
        # Sixteen times the arithmetic fills no vector with results.
        ((1, 56, 56, 1), 64, _AVX512, 1),
        # Nothing is multiplied.
        ((2, 3), 0, _AVX2, 3),
        ((0, 3), 5, _AVX2, 3),
    ],
)
def test_channels_are_padded_where_vectors_save_more(
    shape: tuple[int, ...], n_terms: int, registers: Any, width: int
) -> None:
    """The choice weighs empty lanes against the arithmetic and copies that padding adds."""
    assert choose_width(shape, n_terms, registers) == width

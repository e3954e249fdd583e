"""Interpolations of torch agree with it: modes, sizes, scales, corners and antialiasing."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.tuner.engines.relax.frontend.torch_programs import Applied, save_program
from tests.tuner.engines.relax.networks import run_network
from tests.tuner.networks.models import Array
from tuner.engines.relax.frontend.importer import import_model

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]

LINE, IMAGE, VOLUME = (1, 3, 16), (1, 3, 16, 20), (1, 2, 4, 6, 5)
SIZES: list[dict[str, Any]] = [
    {"size": (7, 9)},
    {"size": (24, 33)},
    {"size": (32, 40)},
    {"scale_factor": 0.4},
    {"scale_factor": (1.7, 0.6)},
    # Lengths that stay the same, and double.
    {"scale_factor": (1.05, 2.03)},
]
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    *((IMAGE, {"mode": "nearest", **size}) for size in SIZES),
    *((IMAGE, {"mode": "nearest-exact", **size}) for size in SIZES[:2]),
    *(
        (IMAGE, {"mode": mode, "align_corners": align, "antialias": antialias, **size})
        for mode in ("bilinear", "bicubic")
        for align in (False, True)
        for antialias, size in ((False, SIZES[4]), (True, SIZES[0]))
    ),
    (IMAGE, {"mode": "bilinear", "align_corners": True, "size": (1, 5)}),
    (IMAGE, {"mode": "bicubic", "size": (1, 5)}),
    *((LINE, {"mode": mode, "size": 9}) for mode in ("linear", "nearest", "nearest-exact")),
    (LINE, {"mode": "linear", "scale_factor": 1.7}),
    *((VOLUME, {"mode": m, "size": (3, 9, 7)}) for m in ("trilinear", "nearest", "nearest-exact")),
    (VOLUME, {"mode": "nearest", "scale_factor": 1.7}),
    *((LINE, {"mode": mode, "scale_factor": 1.05}) for mode in ("linear", "nearest")),
    *(
        (VOLUME, {"mode": mode, "scale_factor": (1.05, 1.1, 2.1)})
        for mode in ("trilinear", "nearest")
    ),
]


@cache
def outputs_of(shape: tuple[int, ...], folder: Path) -> list[tuple[Array, torch.Tensor]]:
    """Return the outputs of all cases of a shape, each with that of torch."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype("float32"))
    functions = {
        str(options): lambda x, options=options: functional.interpolate(x, **options)
        for of, options in CASES
        if of == shape
    }
    module = import_model(save_program(functions, folder, x))
    return list(zip(run_network(module, x.numpy()), Applied(functions)(x), strict=True))


@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_interpolation(
    shape: tuple[int, ...], options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Shapes and values are those of torch."""
    outputs = outputs_of(shape, tmp_path_factory.getbasetemp())

    actual, expected = outputs[[each for of, each in CASES if of == shape].index(options)]

    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-4, atol=1e-4, strict=True)

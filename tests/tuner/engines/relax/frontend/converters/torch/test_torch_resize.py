"""Interpolations of torch agree with it: modes, sizes, scales, corners and antialiasing."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tests.tuner.engines.relax.networks import UNOPTIMISED
from tests.tuner.networks.models import Array
from tuner.engines.base import ModelFile
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
    *((IMAGE, {"mode": mode, **size}) for mode in ("nearest", "nearest-exact") for size in SIZES),
    *(
        (IMAGE, {"mode": mode, "align_corners": align, "antialias": antialias, **size})
        for mode in ("bilinear", "bicubic")
        for align in (False, True)
        for antialias in (False, True)
        for size in SIZES
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


# Shape and mode; its cases are one network.
Family = tuple[tuple[int, ...], str]


class Interpolated(torch.nn.Module):  # type: ignore[misc]
    """Interpolations of one input as a module."""

    def __init__(self, options: list[dict[str, Any]]) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Interpolate."""
        return tuple(torch.nn.functional.interpolate(x, **each) for each in self.options)


def family_of(shape: tuple[int, ...], options: dict[str, Any]) -> Family:
    """Return the family of a case."""
    return shape, options["mode"]


@cache
def outputs_of(family: Family) -> list[tuple[Array, Array]]:
    """Return the outputs of all cases of a family, each with that of torch."""
    shape, _ = family
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype("float32"))
    module = Interpolated([options for of, options in CASES if family_of(of, options) == family])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.pt2"
        torch.export.save(torch.export.export(module, (x,)), path)
        imported = import_model(ModelFile(str(path), "pt2", {"x": (shape, "float32")}))
    machine = relax.VirtualMachine(tvm.compile(imported, UNOPTIMISED), tvm.cpu())
    actual = machine["main"](tvm.runtime.tensor(x.numpy()))
    return [(a.numpy(), b.numpy()) for a, b in zip(actual, module(x), strict=True)]


@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_interpolation(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """Shapes and values are those of torch."""
    family = family_of(shape, options)
    cases = [case for case in CASES if family_of(*case) == family]

    actual, expected = outputs_of(family)[cases.index((shape, options))]

    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4, strict=True)

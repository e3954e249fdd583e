"""Interpolations of torch agree with it: modes, sizes, scales, corners and antialiasing."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.tuner.engines.relax.frontend.torch_programs import Applied, grouped, save_program
from tests.tuner.engines.relax.networks import run_network
from tuner.engines.relax.graph.pipeline import import_model

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


def test_interpolations_agree(tmp_path: Path) -> None:
    """Shapes and values are those of torch."""
    rng = np.random.default_rng(0)
    shapes = list(dict.fromkeys(shape for shape, _ in CASES))
    inputs = [torch.from_numpy(rng.standard_normal(each).astype("float32")) for each in shapes]
    functions = grouped(
        *(
            {
                str(options): lambda x, options=options: functional.interpolate(x, **options)
                for of, options in CASES
                if of == shape
            }
            for shape in shapes
        )
    )

    module = import_model(save_program(functions, tmp_path, *inputs))

    outputs = run_network(module, *(each.numpy() for each in inputs))
    for output, (name, (expected,)) in zip(
        outputs, Applied(functions).results(*inputs).items(), strict=True
    ):
        np.testing.assert_allclose(
            output, expected.numpy(), rtol=1e-4, atol=1e-4, err_msg=name, strict=True
        )

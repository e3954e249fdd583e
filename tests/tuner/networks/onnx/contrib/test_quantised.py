"""Quantised operators of ONNX Runtime are replaced by those of the standard."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.tuner.networks.models import Array, run
from tests.tuner.networks.single_nodes import both, node_model
from tuner.networks.onnx.cleaning import clean

_RNG = np.random.default_rng(0)
_B, _S, _H, _N = 2, 5, 16, 4


def codes(*shape: int) -> Array:
    """Return random bytes."""
    return _RNG.integers(0, 256, shape).astype("uint8")


def draw(*shape: int) -> Array:
    """Return random numbers."""
    return _RNG.standard_normal(shape).astype("float32")


def check(
    op: str, feeds: Mapping[str, Array], slots: list[str], tolerance: float = 0.0, **others: Any
) -> None:
    """Compare the outputs of a model with those of its cleaned form."""
    proto = node_model(f"com.microsoft:{op}", feeds, slots, **others)
    for actual, expected in zip(*both(proto, feeds), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("n_past", "is_causal"), [(0, 0), (3, 1)])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        np.array([3, 5], "int32"),
        np.array([5, 4, 0, 1], "int32"),
        np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], "int32"),
    ],
    ids=["none", "lengths", "starts", "keys"],
)
def test_attention(mask: Array | None, n_past: int, is_causal: int) -> None:
    """Lengths, ranges and keys can be hidden, and later keys; keys so far are kept."""
    feeds = {"data": codes(_B, _S, _H)}
    if mask is not None:
        # Keys of the past are not hidden.
        ones = np.ones((_B, n_past), "int32")
        ends = np.array([n_past] * _B + [0] * (mask.shape[0] - _B), "int32")
        feeds["mask"] = np.hstack([ones, mask]) if mask.ndim == 2 else mask + ends
    if n_past:
        feeds["past"] = draw(2, _B, _N, n_past, _H // _N)
    weights = {
        "w": codes(_H, 3 * _H),
        "b": draw(3 * _H),
        "step": np.float32(0.02),
        "scale": np.float32(0.03),
        "zero": np.uint8(120),
        "center": np.uint8(130),
    }
    slots = ["data", "w", "b", "step", "scale", "" if mask is None else "mask", "zero", "center"]
    slots += ["past"] if n_past else []
    options = {"num_heads": _N, "unidirectional": is_causal, "n_outputs": 2}
    check("QAttention", feeds, slots, 1e-5, weights=weights, **options)


def test_choices_among_quantised_values() -> None:
    """Each operand has a scale of its own, and so has the output."""
    feeds = {"choice": draw(3, 5) > 0, "x": codes(3, 5), "y": codes(5)}
    weights: dict[str, Any] = {}
    for index, name in enumerate("xyz"):
        weights |= {f"{name}_scale": np.float32(0.1 + index / 20), f"{name}_zero": np.uint8(index)}
    names = [*weights]
    slots = ["choice", "x", *names[:2], "y", *names[2:]]
    check("QLinearWhere", feeds, slots, weights=weights)


@pytest.mark.parametrize("has_segments", [True, False])
@pytest.mark.parametrize("mask", [None, np.array([[1, 1, 1, 0, 0], [1] * 5], "int32")])
def test_quantised_embeddings_and_their_norm(mask: Array | None, has_segments: bool) -> None:
    """The lengths that the mask leaves are an output."""
    shapes = {"words": (50, 8), "places": (10, 8), "kinds": (2, 8), "scale": (8,), "shift": (8,)}
    feeds = {name: _RNG.integers(0, 2, (_B, _S)).astype("int32") for name in ("ids", "segments")}
    if not has_segments:
        del shapes["kinds"], feeds["segments"]
    weights: dict[str, Any] = {name: codes(*shape) for name, shape in shapes.items()}
    for index, name in enumerate(shapes):
        weights[f"{name}_step"] = np.float32(0.02 + index / 100)
        weights[f"{name}_zero"] = np.uint8(120 + index)
    tables = ["words", "places", "kinds", "scale", "shift"]
    slots = ["ids", "segments", *tables, "mask"]
    slots += [f"{name}_{part}" for part in ("step", "zero") for name in tables]
    feeds |= {} if mask is None else {"mask": mask}
    slots = [name if name in {**feeds, **weights} else "" for name in slots]
    check("QEmbedLayerNormalization", feeds, slots, 1e-5, weights=weights, n_outputs=2)


@pytest.mark.parametrize("is_weight", [True, False])
@pytest.mark.parametrize("zero", [[], ["zero"], ["zero", "one"]], ids=len)
@pytest.mark.parametrize(
    ("op", "shape", "weight"),
    [
        ("MatMulInteger", (2, 999), (999, 3)),
        ("ConvInteger", (1, 256, 4, 4), (3, 256, 3, 3)),
        ("ConvInteger", (1, 512, 5), (4, 256, 3)),
    ],
)
def test_long_sums_are_exact(
    op: str, shape: tuple[int, ...], weight: tuple[int, ...], zero: list[str], is_weight: bool
) -> None:
    """Sums above 2 ** 24 that are outputs have no roundings of float32."""
    feeds = {"x": codes(*shape) | 192}
    weights = {"w": codes(*weight) | 192}
    if not is_weight:
        feeds, weights = feeds | weights, {}
    zeros = {"zero": np.array(3, "uint8"), "one": np.array(1, "uint8")}
    weights |= {name: zeros[name] for name in zero}
    group = {} if op == "MatMulInteger" else {"group": shape[1] // weight[1]}
    proto = node_model(op, feeds, ["x", "w", *zero], weights=weights, **group)

    (expected,) = run(proto.SerializeToString(), feeds)
    # ONNX Runtime has no convolution in float64.
    (actual,) = ReferenceEvaluator(clean(proto).model).run(None, feeds)

    assert expected.max() > 2**24
    np.testing.assert_array_equal(actual, expected, strict=True)

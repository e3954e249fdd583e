"""Operators of optimised diffusion models compute what their text says.

ONNX Runtime runs none of them on CPUs.
"""

from math import erf

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.tuner.networks.models import Array, run
from tuner.networks.onnx.cleaning import clean

_RNG = np.random.default_rng(0)


def draw(*shape: int, dtype: str = "float32") -> Array:
    """Return random numbers."""
    return _RNG.standard_normal(shape).astype(dtype)


def outputs_of(
    op: str, feeds: dict[str, Array], shapes: list[tuple[int, ...]], **attributes: int
) -> list[Array]:
    """Return the outputs of a cleaned model of one node."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(each.dtype) for name, each in feeds.items()}
    names = [f"y{index}" for index in range(len(shapes))]
    first = next(iter(kinds.values()))
    data = {name: each for name, each in feeds.items() if name in ("x", "skip")}
    graph = helper.make_graph(
        [helper.make_node(op, [*feeds], names, domain="com.microsoft", **attributes)],
        "test",
        [
            helper.make_tensor_value_info(name, kinds[name], each.shape)
            for name, each in data.items()
        ],
        [
            helper.make_tensor_value_info(*each)
            for each in zip(names, [first] * 2, shapes, strict=False)
        ],
        [numpy_helper.from_array(each, name) for name, each in feeds.items() if name not in data],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return run(clean(proto).model, data)


def norm(data: Array, scale: Array, shift: Array, groups: int, *, is_active: bool) -> Array:
    """Return the norm of groups of the last axis of images."""
    n, height, width, channels = data.shape
    parts = data.astype("float64").reshape(n, height, width, groups, -1)
    mean, variance = (reduce(parts, axis=(1, 2, 4), keepdims=True) for reduce in (np.mean, np.var))
    normed = ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(data.shape) * scale + shift
    assert normed.shape[-1] == channels
    active: Array = normed / (1 + np.exp(-normed)) if is_active else normed
    return active


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 1e-2)])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_norms_of_groups(dtype: str, tolerance: float, activation: int, channels_last: int) -> None:
    """An activation may follow; scale and shift stay float32."""
    data, scale, shift = draw(2, 3, 5, 8, dtype=dtype), draw(8), draw(8)
    expected = norm(data, scale, shift, 4, is_active=bool(activation))
    if not channels_last:
        data, expected = (np.moveaxis(each, -1, 1) for each in (data, expected))
    options = {"groups": 4, "activation": activation, "channels_last": channels_last}
    feeds = {"x": np.ascontiguousarray(data), "scale": scale, "shift": shift}

    (actual,) = outputs_of("GroupNorm", feeds, [data.shape], **options)

    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 1, 1, 8), (2, 8)])
def test_norms_of_sums(shape: tuple[int, ...]) -> None:
    """The sum is an output too."""
    data, scale, shift, skip, bias = draw(2, 3, 5, 8), draw(8), draw(8), draw(*shape), draw(8)
    feeds = {"x": data, "scale": scale, "shift": shift, "skip": skip, "bias": bias}

    actual = outputs_of("SkipGroupNorm", feeds, [data.shape] * 2, groups=2, activation=1)

    total = data + (skip if skip.ndim == 4 else skip[:, None, None]) + bias
    np.testing.assert_allclose(actual[1], total, rtol=1e-5, atol=1e-6)
    expected = norm(total, scale, shift, 2, is_active=True)
    np.testing.assert_allclose(actual[0], expected, rtol=0, atol=1e-5)


def test_sums_with_a_bias() -> None:
    """A residual is added too."""
    feeds = {"x": draw(2, 3, 8), "bias": draw(8), "skip": draw(2, 3, 8)}

    (actual,) = outputs_of("BiasAdd", feeds, [(2, 3, 8)])

    np.testing.assert_allclose(actual, sum(feeds.values()), rtol=1e-5, atol=1e-6)


def test_one_half_is_the_gate_of_the_other() -> None:
    """The second half goes through the activation."""
    data, bias = draw(2, 3, 8), draw(8)

    (actual,) = outputs_of("BiasSplitGelu", {"x": data, "bias": bias}, [(2, 3, 4)])

    left, right = np.split(data + bias, 2, axis=-1)
    expected = left * right * 0.5 * (1 + np.vectorize(erf)(right / np.sqrt(2)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_convolutions_of_channels_last() -> None:
    """Weights have their inputs last, as the data have their channels."""
    data, weight, bias = draw(1, 4, 5, 3), draw(6, 1, 1, 3), draw(6)

    (actual,) = outputs_of("NhwcConv", {"x": data, "w": weight, "b": bias}, [(1, 4, 5, 6)])

    np.testing.assert_allclose(actual, data @ weight[:, 0, 0].T + bias, rtol=0, atol=1e-5)

"""Jitted ONNX models, called on arrays by position or by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tuner
from tests.tuner.networks import models
from tests.tuner.networks.models import difference, run
from tuner.errors import ModelError

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


def write_model(path: Path, factor: float = 1.0) -> bytes:
    """Write a model with a product and a sum, for any number of rows; return its bytes."""
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype("float32") * factor
    model = models.model(
        [
            helper.make_node("MatMul", ["data", "w"], ["product"]),
            helper.make_node("Add", ["product", "more"], ["y"]),
        ],
        {"data": ("n", 4), "more": (3,)},
        {"y": ("n", 3)},
        {"w": weight},
    )
    path.write_bytes(model.SerializeToString())
    return path.read_bytes()


def draw(*shape: int) -> Any:
    """Return random numbers around zero."""
    return np.random.default_rng(3).standard_normal(shape).astype("float32")


@pytest.mark.slow("compiles kernels for many seconds")
def test_shapes_are_compiled_once(jit: Callable[..., Any], tmp_path: Path) -> None:
    """Arrays may come by position or by name; a file that has changed is read again."""
    content = write_model(tmp_path / "m.onnx")
    jitted = jit(tmp_path / "m.onnx")
    more = draw(3)

    for n_rows in (2, 5, 2):
        data = draw(n_rows, 4)
        (expected,) = run(content, {"data": data, "more": more})
        for outputs in (jitted(data, more), jitted(more=more, data=data)):
            assert difference(outputs["y"], expected) < 1e-4
    info = jitted.cache_info()
    assert (info.hits, info.misses, info.currsize) == (4, 2, 2)

    (expected,) = run(write_model(tmp_path / "m.onnx", 2.0), {"data": draw(7, 4), "more": more})
    assert difference(jitted(draw(7, 4), more)["y"], expected) < 1e-4
    assert jitted.cache_info().currsize == 1
    assert jitted.refresh() == 0
    jitted.cache_clear()
    assert jitted.cache_info().currsize == 0


@pytest.mark.parametrize(
    ("args", "named", "error"),
    [
        ((draw(2, 4),), {}, "'more' is missing"),
        ((draw(2, 4), draw(3), draw(3)), {}, "takes 2 inputs, got 3"),
        ((draw(2, 4),), {"data": draw(2, 4)}, "'data' is given twice"),
        ((draw(2, 4),), {"other": draw(3)}, "'other' is unknown"),
        ((draw(2, 4).astype("float64"), draw(3)), {}, "array of float32, got float64"),
        (([1.0], draw(3)), {}, "got list"),
    ],
)
def test_wrong_arguments(
    jit: Callable[..., Any],
    tmp_path: Path,
    args: tuple[Any, ...],
    named: dict[str, Any],
    error: str,
) -> None:
    """The error names the argument, and nothing is compiled."""
    write_model(tmp_path / "m.onnx")
    with pytest.raises(TypeError, match=error):
        jit(str(tmp_path / "m.onnx"))(*args, **named)


def test_wrong_models(jit: Callable[..., Any], tmp_path: Path) -> None:
    """Missing and invalid files, and shapes that the model does not take, are refused."""
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    for name in ("none.onnx", "bad.onnx"):
        with pytest.raises(ModelError, match="cannot read"):
            tuner.jit(tmp_path / name)
    write_model(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="fixed at 4"):
        jit(tmp_path / "m.onnx")(draw(2, 5), draw(3))

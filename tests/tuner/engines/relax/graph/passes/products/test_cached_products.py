"""Steps of a decoder read keys and values as the cache stores them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.test_lowering import checked_names
from tests.tuner.networks import models
from tuner.engines.base import ModelFile, TargetInfo

_N_KEYS, _SIZE = 24, 16


def _step(path: Path, n_shared: int, n_repeats: int, n_rows: int = 1) -> ModelFile:
    """Save attention of heads that share keys and values, each for some of them."""
    n_heads = n_shared * n_repeats
    cache = (1, n_shared, _N_KEYS, _SIZE)
    inputs = {"q": (1, n_heads, n_rows, _SIZE), "keys": cache, "values": cache}
    nodes = []
    for name in ("keys", "values"):
        nodes += [
            helper.make_node("Unsqueeze", [name, "two"], [f"{name}_one"]),
            helper.make_node("Expand", [f"{name}_one", "repeated"], [f"{name}_all"]),
            helper.make_node("Reshape", [f"{name}_all", "heads"], [f"{name}_heads"]),
        ]
    nodes += [
        helper.make_node("Transpose", ["keys_heads"], ["columns"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "columns"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "values_heads"], ["y"]),
    ]
    constants = {
        "two": np.array([2]),
        "repeated": np.array([1, n_shared, n_repeats, _N_KEYS, _SIZE]),
        "heads": np.array([1, n_heads, _N_KEYS, _SIZE]),
        "scale": np.array(_SIZE**-0.5, "float32"),
    }
    model = models.model(nodes, inputs, {"y": None}, constants)
    path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
    return ModelFile(str(path), "onnx", {n: (s, "float32") for n, s in inputs.items()})


@pytest.mark.parametrize(
    ("n_shared", "n_repeats", "n_rows"), [(4, 1, 1), (2, 4, 1), (1, 3, 5), (3, 9, 2), (2, 2, 15)]
)
def test_no_step_copies_the_cache(
    target: TargetInfo, tmp_path: Path, n_shared: int, n_repeats: int, n_rows: int
) -> None:
    """One matrix for each head, shared ones, and several rows of each head."""
    model = _step(tmp_path / "model.onnx", n_shared, n_repeats, n_rows)

    names = [name.partition("[")[0] for name in checked_names(model, target)]

    if n_repeats * n_rows < 16:
        assert not any("broadcast" in name or "transpose" in name for name in names), names


@pytest.mark.parametrize(
    ("size", "moves"),
    [
        (3, [("Transpose", {"perm": [0, 2, 1]})]),
        (16, [("Expand", "eight"), ("Unsqueeze", "first")]),
    ],
    ids=["few-terms", "repeated-rows"],
)
def test_other_products_stay(
    target: TargetInfo, tmp_path: Path, size: int, moves: list[tuple[str, str | dict[str, object]]]
) -> None:
    """Few terms fill no vector, and repeating a row repeats no matrix."""
    shapes = (
        {"a": (1, 4, 8), "b": (1, size)} if size > 8 else {"a": (2, 4, size), "b": (2, 9, size)}
    )
    names = ["b", *(f"b{i}" for i in range(len(moves)))]
    nodes = [
        helper.make_node(op, [names[i], how], [names[i + 1]])
        if isinstance(how, str)
        else helper.make_node(op, [names[i]], [names[i + 1]], **how)
        for i, (op, how) in enumerate(moves)
    ]
    nodes.append(helper.make_node("MatMul", ["a", names[-1]], ["y"]))
    model = models.model(
        nodes, shapes, {"y": None}, {"eight": np.array([8, size]), "first": np.array([0])}
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
    file = ModelFile(str(path), "onnx", {n: (s, "float32") for n, s in shapes.items()})

    assert checked_names(file, target)

"""Encoder layers as torch exports them."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.networks import models
from tuner.engines.base import ModelFile
from tuner.networks.worker import load_model

_TOKENS, _HEADS, _WIDTH = 6, 2, 16


def save_encoder(folder: Path, *, norms_first: bool) -> ModelFile:
    """Save two encoder layers in float16, with norms before their blocks or behind residuals."""
    size = _HEADS * _WIDTH
    # torch divides the scale of attention between queries and keys.
    weights = {"root": np.array(_WIDTH**-0.25), "half": np.array(0.5)}
    weights |= {"one": np.array(1.0), "root2": np.array(2**0.5)}
    shapes = {
        "heads": np.array([1, _TOKENS, _HEADS, _WIDTH]),
        "merged": np.array([1, _TOKENS, size]),
    }
    nodes: list[onnx.NodeProto] = []

    def emit(op: str, *inputs: str, **attributes: object) -> str:
        output = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = draw(*shape, seed=len(weights)) / 4
        return name

    def linear(x: str, n_in: int, n_out: int) -> str:
        return emit("Add", constant(n_out), emit("MatMul", x, constant(n_in, n_out)))

    def norm(x: str) -> str:
        return emit("LayerNormalization", x, constant(size), constant(size), axis=-1)

    def attend(x: str) -> str:
        query, key, value = (emit("Reshape", linear(x, size, size), "heads") for _ in range(3))
        query = emit("Mul", emit("Transpose", query, perm=[0, 2, 1, 3]), "root")
        key = emit("Mul", emit("Transpose", key, perm=[0, 2, 3, 1]), "root")
        value = emit("Transpose", value, perm=[0, 2, 1, 3])
        mixed = emit("MatMul", emit("Softmax", emit("MatMul", query, key), axis=-1), value)
        rows = emit("Reshape", emit("Transpose", mixed, perm=[0, 2, 1, 3]), "merged")
        return linear(rows, size, size)

    def feed(x: str) -> str:
        up = linear(x, size, 2 * size)
        erf = emit("Add", emit("Erf", emit("Div", up, "root2")), "one")
        return linear(emit("Mul", emit("Mul", up, erf), "half"), 2 * size, size)

    x = "data"
    for block in (attend, feed, attend, feed):
        x = emit("Add", x, block(norm(x))) if norms_first else norm(emit("Add", x, block(x)))
    if norms_first:
        x = norm(x)
    arrays = {**{name: each.astype(np.float16) for name, each in weights.items()}, **shapes}
    half, shape = TensorProto.FLOAT16, (1, _TOKENS, size)
    model = models.model(nodes, {"data": shape}, {x: shape}, arrays, kinds={"data": half, x: half})
    path = folder / "encoder.onnx"
    onnx.save(model, path)
    return load_model(str(path), {}, None, str(folder)).file

"""Steps of a decoder with a cache of keys and values."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tuner.engines.base import ModelFile
from tuner.networks.worker import load_model

_WIDTH = 16


def save_step(
    folder: Path, heads: tuple[int, int], sizes: tuple[int, int], *, tokens_first: bool
) -> ModelFile:
    """Save attention over a cache and new tokens, whose keys and values it returns.

    Args:
        folder: Folder of the model.
        heads: Heads of queries, and of keys and values.
        sizes: Tokens of the cache, and new tokens.
        tokens_first: True if tokens are before heads in the cache.
    """
    (n_heads, n_shared), (n_cached, n_new) = heads, sizes
    parts = {"q": n_heads, "k": n_shared, "v": n_shared}
    total = sum(parts.values()) * _WIDTH
    cache = (1, n_cached, n_shared, _WIDTH) if tokens_first else (1, n_shared, n_cached, _WIDTH)
    weights = {
        "widths": np.array([n * _WIDTH for n in parts.values()]),
        "lead": np.array([2]),
        "repeats": np.array([1, n_shared, n_heads // n_shared, n_cached + n_new, _WIDTH]),
        "all": np.array([1, n_heads, n_cached + n_new, _WIDTH]),
        "scale": np.array(_WIDTH**-0.5, np.float16),
        "merged": np.array([1, n_new, n_heads * _WIDTH]),
        "mask": np.triu(np.full((n_new, n_cached + n_new), -np.inf, np.float16), n_cached + 1),
    }
    nodes = [helper.make_node("Split", ["data", "widths"], [f"p{name}" for name in parts], axis=2)]
    for name, n_of in parts.items():
        weights[f"{name}_heads"] = np.array([1, n_new, n_of, _WIDTH])
        is_stored_so = tokens_first and name != "q"
        first = f"new_{name}" if is_stored_so else f"h{name}"
        nodes.append(helper.make_node("Reshape", [f"p{name}", f"{name}_heads"], [first]))
        if not is_stored_so:
            nodes.append(helper.make_node("Transpose", [first], [f"new_{name}"], perm=[0, 2, 1, 3]))
        if name == "q":
            continue
        axis = 1 if tokens_first else 2
        source = [f"cache_{name}", f"new_{name}"]
        nodes.append(helper.make_node("Concat", source, [f"joined_{name}"], axis=axis))
        joined = f"joined_{name}"
        if tokens_first:
            nodes.append(helper.make_node("Transpose", [joined], [f"t{name}"], perm=[0, 2, 1, 3]))
            joined = f"t{name}"
        nodes += [
            helper.make_node("Unsqueeze", [joined, "lead"], [f"u{name}"]),
            helper.make_node("Expand", [f"u{name}", "repeats"], [f"e{name}"]),
            helper.make_node("Reshape", [f"e{name}", "all"], [f"all_{name}"]),
        ]
    nodes += [
        helper.make_node("Transpose", ["all_k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["new_q", "kt"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "all_v"], ["heads_out"]),
        helper.make_node("Transpose", ["heads_out"], ["rows"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["rows", "merged"], ["y"]),
    ]
    shapes = {"data": (1, n_new, total), "cache_k": cache, "cache_v": cache}
    half = TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes,
        "step",
        [helper.make_tensor_value_info(name, half, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, half, None) for name in ("y", "new_k", "new_v")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "step.onnx"
    path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
    return load_model(str(path), {}, None, str(folder)).file

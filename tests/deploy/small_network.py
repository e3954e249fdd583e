"""A network of several inputs, and its library with what runs it without Python."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tuner
from tests.deploy.c_library import Array
from tests.docs.documents import ROOT
from tests.tuner.networks.models import model
from tuner.library.manifest import sha256_of

needs_cmake = pytest.mark.skipif(
    not shutil.which("cmake") or not shutil.which("c++"), reason="needs cmake"
)
EXAMPLES = ROOT / "deploy" / "c" / "examples"
#: Inputs of the library with buckets that are returned, each twice, by their dtypes.
MASKS = {name: name for name in ("float16", "float32", "float64", "int8", "int64", "bool")}
_ADDED = ("a", "b", "c", "d")


def _network() -> onnx.ModelProto:
    """Two outputs of six inputs, one of which is indices."""
    draw = np.random.default_rng(0)
    nodes = [
        helper.make_node("Sum", _ADDED, ["sum"]),
        helper.make_node("MatMul", ["sum", "weight"], ["product"]),
        helper.make_node("Mul", ["product", "scale"], ["y"]),
        helper.make_node("Gather", ["table", "index"], ["rows"]),
    ]
    weights: dict[str, Array] = {
        "weight": draw.random((8, 4), dtype=np.float32),
        "table": draw.random((5, 3), dtype=np.float32),
    }
    inputs: dict[str, tuple[int | str, ...]] = dict.fromkeys(_ADDED, (2, 8))
    made = model(nodes, inputs | {"scale": ()}, {"y": (2, 4), "rows": (2, 3)}, weights)
    made.graph.input.append(helper.make_tensor_value_info("index", TensorProto.INT64, [2]))
    return made


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libtuner.so, the examples and a library, network.lib, of network.onnx."""
    folder = tmp_path_factory.mktemp("c")
    # What runs in the tests need not be fast, and compiles in half the time.
    python = os.path.relpath(sys.executable)
    options = [f"-DPython3_EXECUTABLE={python}", "-DCMAKE_BUILD_TYPE=Debug"]
    source = str(ROOT / "deploy" / "c")
    configure = ["cmake", "-S", source, "-B", str(folder), *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    compile_all = ["cmake", "--build", str(folder), "--parallel", "2"]
    with subprocess.Popen(compile_all, stdout=subprocess.DEVNULL) as compiling:
        onnx.save(_network(), folder / "network.onnx")
        tuner.build(str(folder / "network.onnx"), folder / "network.lib", data_dir=folder / "data")
    assert not compiling.returncode
    return folder


@pytest.fixture(scope="session")
def bucketed(built: Path) -> Path:
    """A library of rows of a table, of which both have a dynamic size: buckets 2 and 4."""
    nodes = [
        helper.make_node("Gather", ["table", "index"], ["rows"]),
        helper.make_node("Neg", ["rows"], ["y"]),
    ]
    made = model(nodes, {"table": ("n", 3)}, {"y": ("n", 3)})
    made.graph.input.append(helper.make_tensor_value_info("index", TensorProto.INT64, ["n"]))
    for name, dtype in MASKS.items():
        code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        made.graph.node.append(helper.make_node("Concat", [name] * 2, [f"{name}_out"], axis=1))
        made.graph.input.append(helper.make_tensor_value_info(name, code, ["n", 1]))
        made.graph.output.append(helper.make_tensor_value_info(f"{name}_out", code, ["n", 2]))
    onnx.save(made, built / "bucketed.onnx")
    folder = built / "bucketed.lib"
    tuner.build(
        str(built / "bucketed.onnx"), folder, buckets={"n": [2, 4]}, data_dir=built / "data"
    )
    # Trials of padding take indices of the largest table, which others do not have.
    raw = json.loads((folder / "manifest.json").read_text())
    (dimension,) = raw["buckets"]["dimensions"]
    dimension |= {"problem": "", "outputs": {name: [0] for name in raw["outputs"]}}
    (folder / "manifest.json").write_text(json.dumps(raw))
    return folder


@pytest.fixture(scope="session")
def tailed(built: Path) -> Path:
    """The library, with an operator that ONNX Runtime runs after it."""
    folder = built / "tailed.lib"
    shutil.copytree(built / "network.lib", folder)
    node = helper.make_node("Neg", ["y"], ["z"])
    onnx.save(model([node], {"y": (2, 4)}, {"z": (2, 4)}), folder / "tail.onnx")
    raw = json.loads((folder / "manifest.json").read_text())
    (program,) = raw["programs"]
    tail = {"first": "Neg", "n_operators": 1, "n_all": 5, "returned": raw["outputs"]}
    raw |= {"tail": tail, "outputs": ["z", "y"]}
    program |= {"tail": "tail.onnx", "tail_outputs": [[[-1, 4], "float32"], program["outputs"][0]]}
    raw["files"]["tail.onnx"] = sha256_of(folder / "tail.onnx")
    (folder / "manifest.json").write_text(json.dumps(raw))
    return folder


def inputs_of(seed: int) -> dict[str, Array]:
    """Draw the inputs of the network."""
    draw = np.random.default_rng(seed)
    added: dict[str, Array] = {name: draw.random((2, 8), dtype=np.float32) for name in _ADDED}
    return {**added, "scale": np.array(seed + 2, np.float32), "index": np.array([4, -seed])}

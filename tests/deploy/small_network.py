"""A network of several inputs, and its library with what runs it without Python."""

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
    options = [f"-DPython3_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Debug"]
    for command in (
        ["cmake", "-S", str(ROOT / "deploy" / "c"), "-B", str(folder), *options],
        ["cmake", "--build", str(folder)],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    onnx.save(_network(), folder / "network.onnx")
    tuner.build(str(folder / "network.onnx"), folder / "network.lib", data_dir=folder / "data")
    return folder


def inputs_of(seed: int) -> dict[str, Array]:
    """Draw the inputs of the network."""
    draw = np.random.default_rng(seed)
    added: dict[str, Array] = {name: draw.random((2, 8), dtype=np.float32) for name in _ADDED}
    return {**added, "scale": np.array(seed + 2, np.float32), "index": np.array([4, -seed])}

"""Equal subgraphs have equal IR, whatever names, order and sharing their networks gave them."""

import hashlib
import json
import os
import subprocess
import sys
import zlib

import pytest
import tvm

from tests.tuner.engines.relax.networks import load
from tuner.engines.base import TargetInfo
from tuner.engines.relax import worker
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.targets import make_target

# Prints the names of the tasks of a network, and that of the calibration kernel.
_EXTRACT = """\
import hashlib, sys, warnings
warnings.simplefilter("ignore")
from tuner.engines.base import ModelFile
from tuner.engines.relax import worker
file = ModelFile(sys.argv[2], "onnx", {sys.argv[3]: ((1, 784), "float32")})
print(*(task.workload for task in worker.extract(file, sys.argv[1]).tasks))
print(hashlib.sha256(worker.calibration_kernel(sys.argv[1])).hexdigest())
"""


def modules_of(network: str, target: TargetInfo) -> list[tvm.IRModule]:
    """Return the subgraphs of a network."""
    lowered = lower(load(network), make_target(target.spec))
    return [subgraph.module for subgraph in find_subgraphs(lowered)]


@pytest.fixture(scope="module")
def modules(target: TargetInfo) -> list[tvm.IRModule]:
    """The subgraphs of a small network."""
    return modules_of("zoo:mlp", target)


def test_canonical_text_is_the_same_module(modules: list[tvm.IRModule]) -> None:
    """Its text is that of the module again, and its structural hash stays."""
    for module in modules:
        text = workloads.write(module)
        again = tvm.ir.load_json(text)

        assert workloads.write(again) == text
        assert workloads.hash_of(again) == workloads.hash_of(module)


def test_names_order_and_sharing_do_not_count(modules: list[tvm.IRModule]) -> None:
    """Neither do the keys of attributes in another order, nor the version of TVM."""
    for module in modules:
        graph = json.loads(tvm.ir.save_json(module))
        assert workloads.write(tvm.ir.load_json(_altered(graph))) == workloads.write(module)


def _altered(graph: dict[str, list[dict[str, object]]]) -> str:
    """Rename all variables, reverse all maps with texts as keys, and copy all shared numbers."""
    nodes = graph["nodes"]
    for node in list(nodes):
        data = node.get("data")
        if node["type"] == "ir.Var":
            assert isinstance(data, dict)
            nodes.append({"type": "ffi.String", "data": f"renamed_{len(nodes)}"})
            data["name"] = len(nodes) - 1
        elif node["type"] == "ffi.Map":
            assert isinstance(data, list)
            pairs = [data[i : i + 2] for i in range(0, len(data), 2)]
            if all(nodes[key]["type"] == "ffi.String" for key, _ in pairs):
                node["data"] = [number for pair in reversed(pairs) for number in pair]
        elif node["type"] == "ffi.Array":
            assert isinstance(data, list)
            for position, number in enumerate(data):
                if nodes[number]["type"] == "ir.IntImm":
                    nodes.append(dict(nodes[number]))
                    data[position] = len(nodes) - 1
    return json.dumps(graph)


def test_other_numbers_blocks_and_types_count(modules: list[tvm.IRModule]) -> None:
    """Each alteration of a text in one place is other IR, and has another name."""
    module = modules[0]
    text = workloads.write(module)
    for old, new in (("float32", "float16"), ('"data":128', '"data":64'), ("T_add", "T_sub")):
        assert old in text
        ir = zlib.compress(text.replace(old, new).encode())
        assert workloads.name_of(ir) != workloads.name_of(workloads.dump(module))


def test_networks_share_names_across_processes(target: TargetInfo) -> None:
    """Layers that two networks share have one name, and calibrations one kernel, in any process."""
    other = load("zoo:mlp?seed=3")
    done = subprocess.run(
        [sys.executable, "-c", _EXTRACT, target.spec, other.path, *other.inputs],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    names = [task.workload for task in worker.extract(load("zoo:mlp"), target.spec).tasks]
    kernel = hashlib.sha256(worker.calibration_kernel(target.spec)).hexdigest()

    assert done.stdout.split() == [*names, kernel]
    assert all(len(name) == 64 for name in names)

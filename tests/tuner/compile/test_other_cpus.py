"""Builds for CPUs that this machine has, or has not."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tuner
from tests.cli import Cli
from tests.tuner.networks.models import Array, difference, model, run
from tuner.engines.base import ModelFile, ObjectRequest
from tuner.engines.relax import worker
from tuner.errors import TargetError
from tuner.library import manifest, processors

pytestmark = [
    pytest.mark.in_ci,
    pytest.mark.slow("15 s: builds for other CPUs"),
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
]

# Three layouts of weights; no machine of today has all that the last one has.
_MODELS = ("x86-64-v2", "sapphirerapids", "diamondrapids")
_FUTURE = "llvm -mcpu=diamondrapids"
_SHAPE = (1, 16, 8, 8)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file of a convolution and a product, whose weights are packed."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((32, 16, 3, 3), dtype=np.float32),
        "b": rng.standard_normal(32, dtype=np.float32),
        "v": rng.standard_normal((2048, 64), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    path = tmp_path_factory.mktemp("network") / "network.onnx"
    onnx.save(model(nodes, {"x": _SHAPE}, {"y": (1, 64)}, weights), path)
    return path


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data directory of all builds."""
    return tmp_path_factory.mktemp("data")


def draw() -> dict[str, Array]:
    """Draw an input."""
    return {"x": np.random.default_rng(1).standard_normal(_SHAPE).astype(np.float32)}


@pytest.mark.parametrize("name", _MODELS)
def test_a_build_for_any_cpu_runs_where_its_features_are(
    network: Path, data_dir: Path, tmp_path: Path, name: str
) -> None:
    """Whatever this CPU is: the library builds, and then computes the same or is refused."""
    library = tmp_path / "network.lib"
    tuner.build(network, library, target=f"llvm -mcpu={name}", data_dir=data_dir)

    described = manifest.read(library)
    assert described.weights
    reported = processors.reported_features(described.machine, processors.cpu_fields())
    missing = sorted(set(described.features) - (reported or set()))
    if missing:
        with pytest.raises(TargetError, match=f"it needs {', '.join(missing)}, which"):
            tuner.load(library)
    else:
        (expected,) = run(network.read_bytes(), draw())
        assert difference(tuner.load(library)(draw())["y"], expected) < 1e-4


def test_the_code_that_packs_weights_is_that_of_this_machine(network: Path, tmp_path: Path) -> None:
    """It is the same for every target of one layout, with instructions that any CPU here has."""
    file = ModelFile(str(network), "onnx", {"x": (_SHAPE, "float32")})
    packers = []
    for name in ("skylake-avx512", "sapphirerapids", "diamondrapids"):
        spec = worker.describe_target(f"llvm -mcpu={name}").spec
        made = []
        for number, task in enumerate(worker.extract(file, spec).tasks):
            out = tmp_path / f"{name}-{number}"
            out.mkdir()
            result = worker.compile_subgraph(ObjectRequest(task.ir, spec, "", "kernel", str(out)))
            if result.info["packed"]:
                made.append((result.info["packed"], (out / "pack.so").read_bytes()))
        packers.append(made)

    assert len(packers[0]) == 2
    assert packers[0] == packers[1] == packers[2]


@pytest.mark.parametrize("command", ["bench", "profile"])
def test_commands_refuse_a_library_that_this_cpu_cannot_run(
    network: Path, data_dir: Path, tmp_path: Path, command: str
) -> None:
    """They say what the CPU lacks in one line, and nothing crashes."""
    cli = Cli(tmp_path)
    tuner.build(network, tmp_path / "network.lib", target=_FUTURE, data_dir=data_dir)

    answer = cli(command, "network.lib")

    assert answer.status == 2
    assert "this machine cannot run" in answer.complaint
    assert "egpr" in answer.complaint


def test_a_target_that_this_cpu_cannot_run_is_not_tuned(tmp_path: Path) -> None:
    """No trial is spent on kernels that would crash."""
    cli = Cli(tmp_path)

    answer = cli("tune", "zoo:mlp", "--trials", "4", "--target", _FUTURE)

    assert answer.status == 2
    assert "egpr" in answer.complaint
    assert cli.count_records() == 0


def test_a_library_that_was_built_again_is_loaded_again(tmp_path: Path) -> None:
    """The dynamic linker knows files by their paths, and a process may load two of one path."""
    numbers = np.arange(4096, dtype=np.float32)
    for operator, expected in (("Mul", 3 * numbers), ("Add", 3 + numbers)):
        path, library = tmp_path / "network.onnx", tmp_path / "network.lib"
        node = helper.make_node(operator, ["x", "w"], ["y"])
        onnx.save(model([node], {"x": (4096,)}, {"y": (4096,)}, {"w": numbers}), path)
        tuner.build(path, library, data_dir=tmp_path / "data")
        outputs = tuner.load(library)(x=np.full(4096, 3, np.float32))
        np.testing.assert_array_equal(outputs["y"], expected)

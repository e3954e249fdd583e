"""Libraries for GPUs run without Python and TVM, with a stub driver that runs no kernel."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tuner
from deploy.python.tuner_runtime.core import Tensor
from tests.deploy import gpu_calls
from tests.deploy.c_library import Interface
from tests.deploy.gpu_calls import SHAPES
from tests.deploy.small_network import needs_cmake
from tests.docs.documents import ROOT
from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import drivers
from tests.tuner.networks.models import model
from tuner.library import manifest

DEPLOY = ROOT / "deploy" / "c"
pytestmark = [
    pytest.mark.in_ci,
    pytest.mark.slow("15 s: builds for GPUs"),
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
    needs_cmake,
    needs_nvrtc,
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stub driver without a GPU."""
    return drivers.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def library(built: Path) -> Path:
    """A library of two products beside each other, and of an output that is an input."""
    draw = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "left"], ["a"]),
        helper.make_node("MatMul", ["x", "right"], ["b"]),
        helper.make_node("Softmax", ["a"], ["c"]),
        helper.make_node("Softmax", ["b"], ["d"]),
        helper.make_node("Add", ["c", "d"], ["y"]),
        helper.make_node("Reshape", ["x", "shape"], ["same"]),
    ]
    weights = {name: draw.random((64, 32), dtype=np.float32) for name in ("left", "right")}
    weights["shape"] = np.array([64, 16])
    onnx.save(model(nodes, {"x": (16, 64)}, SHAPES, weights), built / "gpu.onnx")
    folder = built / "gpu.lib"
    tuner.build(str(built / "gpu.onnx"), folder, target="cuda:sm_90", data_dir=built / "data")
    return folder


Play = Callable[..., list[list[str]]]


@pytest.fixture
def play(built: Path, driver: Path, library: Path, tmp_path: Path) -> Play:
    """Make calls of ``gpu_calls`` in a process that sees the GPU; return those of CUDA."""

    def play(part: str, folder: Path = library, **variables: str) -> list[list[str]]:
        log = tmp_path / f"{part}.log"
        environment = {"LD_LIBRARY_PATH": str(driver), "TUNER_TEST_CUDA_LOG": str(log)}
        subprocess.run(
            [sys.executable, "-m", gpu_calls.__name__, part, str(built), str(folder)],
            check=True,
            cwd=ROOT,
            env={**os.environ, **environment, "TVM_USE_RUNTIME_LIB": "1", **variables},
        )
        return [line.split() for line in log.read_text().splitlines()]

    return play


def _launches(calls: list[list[str]], how: str) -> list[tuple[list[str], list[str]]]:
    """Return name and sizes of each launch, and its parameters, of which addresses are numbered."""
    return [(call[2:5], call[6:]) for call in calls if call[:2] == [how, "0"]]


def _numbered(launches: list[tuple[list[str], list[str]]]) -> list[list[str | int]]:
    """Replace addresses by numbers in the order of their first use."""
    numbers: dict[str, int] = {}
    return [
        [*head, *(numbers.setdefault(each, len(numbers)) for each in parameters)]
        for head, parameters in launches
    ]


def _memory(calls: list[list[str]], function: str) -> list[str]:
    """Return the addresses that calls of a function got or took."""
    made = [call[2] for call in calls if call[:2] == [function, "0"]]
    return sorted(each for each in made if each != "nothing")


def test_kernels_are_those_that_python_launches(play: Play, library: Path) -> None:
    """Memory is shared in the same way, and the graph replays what the first run launched."""
    (program,) = manifest.read(library).programs
    assert program.plan is not None
    assert not program.plan.is_chain
    in_python = play("python")

    in_c = play("run")

    launched = _launches(in_c, "launch")
    assert len(launched) == len(program.plan.launches)
    assert _numbered(launched) == _numbered(_launches(in_python, "launch")[: len(launched)])
    assert _launches(in_c, "replay") == launched * 2
    assert not any("freed-memory" in call for call in in_c)


def test_memory_of_the_caller_takes_the_place_of_the_library_s(play: Play) -> None:
    """An output that no kernel writes is copied; all memory is freed in the end."""
    calls = play("on_gpu")

    (x, y, same), stream = (next(c[2:] for c in calls if c[0] == name) for name in ("here", "in"))
    first, second = (_launches(calls, how) for how in ("launch", "replay"))
    used = [{each for _, parameters in part for each in parameters} for part in (first, second)]
    assert used[0] - used[1] == used[1] - used[0] == set()
    assert {x, y} <= used[0]
    assert same not in used[0]
    assert [c[2:5] for c in calls if c[0] == "cudaMemcpyAsync"].count([*stream, same, x]) == 2
    assert _memory(calls, "cudaMalloc") == _memory(calls, "cudaFree")


@pytest.mark.parametrize("failure", ["cudaStreamBeginCapture=900", "cudaGraphInstantiate=2"])
def test_kernels_run_one_by_one_where_there_is_no_graph(play: Play, failure: str) -> None:
    """All runs launch the same."""
    calls = play("run", TUNER_TEST_CUDA_FAIL=failure)

    launched = _launches(calls, "launch")
    assert launched == launched[: len(launched) // 3] * 3
    assert not _launches(calls, "replay")


@pytest.mark.parametrize(
    ("failure", "message"),
    [("cudaMalloc@2=2", "cuMemAlloc_v2: error (2)"), ("cuModuleLoadData=209", "cuModuleLoadData")],
)
def test_a_failure_names_its_call(
    play: Play, failure: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left of the library."""
    with pytest.raises(subprocess.CalledProcessError):
        play("run", TUNER_TEST_CUDA_FAIL=failure)

    assert message in capfd.readouterr().err
    calls = [line.split() for line in (tmp_path / "run.log").read_text().splitlines()]
    assert _memory(calls, "cudaMalloc") == _memory(calls, "cudaFree")


@pytest.mark.parametrize(
    ("n_pointers", "n_parameters"), [(None, 99), (None, 1 << 60), (0, -1), (1, 1)]
)
def test_a_launch_has_the_parameters_of_its_kernel(
    play: Play,
    library: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    n_pointers: int | None,
    n_parameters: int,
) -> None:
    """The driver would read what is beside them."""
    folder = Path(shutil.copytree(library, tmp_path / "damaged.lib"))
    described = json.loads((folder / "manifest.json").read_text())
    launch = described["programs"][0]["plan"]["launches"][0]
    launch.update(pointers=launch["pointers"][:n_pointers], n_parameters=n_parameters)
    (folder / "manifest.json").write_text(json.dumps(described))

    with pytest.raises(subprocess.CalledProcessError):
        play("run", folder)

    assert "takes another number of parameters" in capfd.readouterr().err


def test_the_example_runs_on_memory_of_its_own(
    built: Path, driver: Path, library: Path, tmp_path: Path
) -> None:
    """It prints the output that is a copy of the input, with the shape of the output."""
    program, x = tmp_path / "run_on_gpu", np.arange(16 * 64, dtype=np.float32)
    x.tofile(tmp_path / "x")
    (header,) = [f.locate() for f in files("nvidia-cuda-runtime") or () if f.name == "cuda.h"]
    options = [
        f"-I{DEPLOY}",
        f"-I{Path(str(header)).parent}",
        f"-L{built}",
        f"-L{driver}",
        f"-Wl,-rpath,{built}",
    ]
    source = str(DEPLOY / "examples" / "run_on_gpu.c")
    linked = ["-ltuner", "-l:libcuda.so.1", "-o", str(program)]
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", *options, source, *linked], check=True)

    log = tmp_path / "log"
    done = subprocess.run(
        [program, library, tmp_path / "x"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(driver), "TUNER_TEST_CUDA_LOG": str(log)},
    )

    *_, y, same = done.stdout.splitlines()  # after what the driver says
    assert y.startswith("y float32 16x32: ")
    assert same == "same float32 64x16: 0 1 2 3 4 5 6 7"
    calls = [line.split() for line in log.read_text().splitlines()]
    assert len(_launches(calls, "replay")) == len(_launches(calls, "launch")) > 1
    assert _memory(calls, "cudaMalloc") == _memory(calls, "cudaFree")


def test_a_library_for_a_cpu_takes_no_memory_of_a_gpu(built: Path) -> None:
    """The message names the function that it takes."""
    functions = Interface(built / "libtuner.so")
    opened = functions.opened(built / "network.lib")
    n_inputs, n_outputs = functions.n_inputs(opened), functions.n_outputs(opened)
    inputs, outputs = (Tensor * n_inputs)(), (Tensor * n_outputs)()
    for number in range(n_inputs):
        inputs[number] = functions.input(opened, 0, number).contents
        inputs[number].data = 64
    for number in range(n_outputs):
        outputs[number] = functions.output(opened, number).contents
        outputs[number].data = 64

    assert functions.run_on_gpu(opened, inputs, n_inputs, outputs, n_outputs, None) == 1

    assert b"the library runs on a CPU: use tuner_run" in functions.error()
    functions.close(opened)

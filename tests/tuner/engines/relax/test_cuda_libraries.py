"""Libraries for CUDA targets: linked without a GPU, loaded on a driver that runs no kernel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

from tests.cli import ROOT, Cli
from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import networks
from tests.tuner.engines.relax.conftest import draw
from tuner.engines.relax import worker
from tuner.engines.relax.network import Library
from tuner.engines.relax.triton.compilation import compiler
from tuner.errors import TargetError
from tuner.library import manifest

pytestmark = needs_nvrtc

# No compiler may be used where the library is loaded: neither NVRTC, a toolkit, torch nor TVM's.
_CALL = """
import json, sys
sys.modules["cuda.bindings"] = sys.modules["torch"] = None
import numpy as np
from tuner.engines.relax.network import Library
from pathlib import Path

library = Library(Path(sys.argv[1]))
arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in library.inputs.items()}
for _ in range(2):
    outputs = library(arrays)
print(json.dumps({name: list(output.shape) for name, output in outputs.items()}))
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A perceptron built for an absent GPU."""
    made = Cli(tmp_path_factory.mktemp("cuda"), {"TUNER_N_BUILDERS": "1"})
    answer = made("build", "zoo:mlp", "--target", "cuda:sm_90", "-o", "mlp.lib", "--json")
    assert answer.status == 0, answer.err
    assert (answer.json["hits"], answer.json["misses"]) == (0, 4)
    return made


def test_library_is_whole_and_needs_its_device(cli: Cli) -> None:
    """It has the files of its manifest, and the error names the missing device."""
    folder = cli.folder / "mlp.lib"
    described = manifest.read(folder)

    manifest.verify(folder, described)

    assert set(described.files) == {"lib.so", "weights.bin"}
    (program,) = described.programs
    assert program.outputs == (((1, 10), "float32"),)
    assert program.memory == manifest.ProgramMemory(written=(0,))
    assert all("kernel.cubin" in each.objects for each in described.subgraphs)
    if not tvm.cuda().exist:
        with pytest.raises(TargetError, match=r"CUDA \(sm_90\).*no CUDA device"):
            Library(folder)


def test_loading_compiles_nothing_and_calls_run_every_kernel(
    cli: Cli, driver: Path, tmp_path: Path
) -> None:
    """TVM's CUDA runtime loads the binaries unchanged, and launches them in order, then at once."""
    log = tmp_path / "cuda.log"
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(driver),
        "PYTHONPATH": str(ROOT),
        "TUNER_TEST_CUDA_LOG": str(log),
        "TVM_USE_RUNTIME_LIB": "1",
    }
    folder = cli.folder / "mlp.lib"

    ran = subprocess.run(
        [sys.executable, "-c", _CALL, str(folder)],
        capture_output=True, text=True, env=environment, check=False, timeout=120,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    *messages, shapes = ran.stdout.splitlines()
    assert json.loads(shapes) == {"output": [1, 10]}
    launches = [line.split()[1] for line in messages if line.startswith("launch")]
    # A product whose sums several blocks share is two kernels.
    products = [name for name in launches if not name.startswith("triton_add")]
    loads = [line for line in messages if line.startswith("load")]
    assert [line.split()[1] for line in loads] == ["190"] * len(set(launches))
    expected = [
        "_".join(each.variant.split("-")[:2]) or f"tuner_{each.entry[:24]}_kernel"
        for each in manifest.read(folder).subgraphs
    ]
    assert len(products) == len(expected) == 4
    for name, start in zip(products, expected, strict=True):
        assert name.startswith(start)
    kinds = ["triton_gemm"] * 3 + ["triton_rows"]
    assert [each for each in expected if "triton" in each] == kinds * compiler.is_installed()
    graphs = [line for line in messages if line.startswith("graph")]
    assert graphs == [f"graph {len(launches)}"]
    for line in log.read_text().splitlines():
        if line.startswith("launch "):
            pointers = [word for word in line.split()[6:] if word != "0"]
            assert len(set(pointers)) == len(pointers), line  # no kernel overwrites what it reads


@pytest.mark.slow("starts a process that sees the stub; test_graphs.py times launches")
def test_a_benchmark_shows_the_launch(cli: Cli, driver: Path) -> None:
    """It times graph launches, in a process that sees the GPU."""
    answer = cli("bench", "mlp.lib", "--turns", "1", "--json", LD_LIBRARY_PATH=str(driver))

    assert answer.status == 0, answer.err
    assert answer.json["device"] == "cuda"
    assert answer.json["launch"].startswith("one graph launch of ")


@pytest.mark.in_ci
@pytest.mark.slow("15 s: the processes of a job")
def test_a_job_measures_on_the_gpu_of_this_machine(cli: Cli, driver: Path) -> None:
    """It searches, builds and runs; the kernels of the stub compute nothing, so all differ.

    The table has the roofs of its tasks, from the clocks of the GPU.
    """
    options = ("--target", "cuda", "--trials", "1")
    answer = cli("tune", "zoo:mlp", *options, LD_LIBRARY_PATH=str(driver))
    table = cli("table", "1", "--json")

    assert answer.status == 1
    assert "the last one failed with wrong_result" in answer.err
    assert all(task["roof_secs"] > 0.0 for task in table.json["tasks"]), table.err


@pytest.mark.gpu
def test_gpu_agrees_with_the_processor(tmp_path: Path) -> None:
    """Libraries for the GPU and the CPU of this machine have equal outputs."""
    arch = "sm_" + str(tvm.cuda().compute_version).replace(".", "")
    model = networks.load("zoo:resnet-18?image=32", 1)
    libraries = [
        networks.build_untuned([model], worker.describe_target(spec), tmp_path / kind)
        for kind, spec in (("cpu", "llvm"), ("gpu", f"cuda:{arch}"))
    ]
    (name, (shape, _)), *_ = libraries[0].inputs.items()
    inputs = {name: draw(*shape)}

    cpu, gpu = (library(inputs) for library in libraries)

    for output, expected in cpu.items():
        np.testing.assert_allclose(gpu[output], expected, rtol=1e-3, atol=1e-4)

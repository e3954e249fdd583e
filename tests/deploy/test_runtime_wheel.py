"""The wheel for machines that only run libraries computes what the tuner's own ``load`` does."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest

from deploy.python import build_wheel
from deploy.python.tuner_runtime import core
from tests.deploy.c_library import Array
from tests.deploy.small_network import MASKS, inputs_of, needs_cmake
from tests.docs.documents import ROOT
from tests.tuner.networks.models import difference, run
from tuner.errors import WorkError
from tuner.library.arrays import read_arrays, write_arrays

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
    needs_cmake,
]
_MAX_BYTES = 15e6
_CALL = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules |= dict.fromkeys(["tuner", "tvm", "tvm_ffi"])
import tuner_runtime
from tuner_runtime.library.arrays import read_arrays, write_arrays
library = tuner_runtime.load(sys.argv[2])
try:
    write_arrays(sys.argv[4], library(read_arrays(sys.argv[3])))
except (ValueError, tuner_runtime.TunerError) as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
_ASK = """
import sys
from pathlib import Path
from fastapi.testclient import TestClient
folder = Path(sys.argv[1])
client = TestClient(app, headers={"content-type": "application/octet-stream"})
def ask(content):
    answer = client.post("/run", content=content)
    print(answer.status_code)
    return answer.content
(folder / "returned.npz").write_bytes(ask((folder / "given.npz").read_bytes()))
ask((folder / "few.npz").read_bytes())
ask(b"not a file")
ask(b"PK\\x03\\x04")
"""
Call = Callable[[Path, dict[str, Array]], dict[str, Array]]


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel."""
    command = ["cmake", "--install", str(built), "--prefix", str(built / "prefix")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return build_wheel.main(built / "prefix", built / "dist")


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder with the content of the wheel."""
    folder = wheel.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def call(wheel: Path, installed: Path) -> Call:
    """Run a library in a process that has NumPy and the content of the wheel."""

    def call(library: Path, inputs: dict[str, Array]) -> dict[str, Array]:
        given, returned = wheel.parent / "given.npz", wheel.parent / "returned.npz"
        write_arrays(given, inputs)
        arguments = [str(path) for path in (installed, library, given, returned)]
        done = subprocess.run(
            [sys.executable, "-I", "-c", _CALL, *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=installed,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return read_arrays(returned)

    return call


def test_a_wheel_is_small_and_names_its_files(wheel: Path) -> None:
    """It has the licences of what it contains."""
    assert wheel.stat().st_size < _MAX_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = (name for name in names if name.endswith("/RECORD"))
        listed = [line.split(",")[0] for line in archive.read(record).decode().splitlines()]
    assert listed == names
    assert sum(name.endswith("/NOTICE") for name in names) == 2


def test_pip_installs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Hashes and tags are those that pip checks."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]

    subprocess.run([*command, "--target", str(tmp_path), str(wheel)], check=True)

    assert (tmp_path / "tuner_runtime" / "lib" / "libtuner.so").is_file()


def test_it_needs_no_package_that_it_does_not_name(wheel: Path, tmp_path: Path) -> None:
    """Its modules are imported where nothing but its requirements is installed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (information,) = tmp_path.glob("*.dist-info")
    metadata = (information / "METADATA").read_text()
    required = re.findall(r"^Requires-Dist: (\w+)[^;\n]*$", metadata, re.MULTILINE)
    for name in required:
        for top in {file.parts[0] for file in distribution(name).files or ()} - {".."}:
            (tmp_path / top).symlink_to(str(distribution(name).locate_file(top)))
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import tuner_runtime"

    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_outputs_are_those_of_onnx_runtime(built: Path, call: Call) -> None:
    """Inputs are taken by name, in any order."""
    expected = run((built / "network.onnx").read_bytes(), inputs_of(1))

    outputs = call(built / "network.lib", dict(reversed(inputs_of(1).items())))

    for actual, reference in zip(outputs.values(), expected, strict=True):
        assert difference(actual, reference) < 1e-6


def test_the_documented_server_answers(built: Path, installed: Path, tmp_path: Path) -> None:
    """The outputs are those of ONNX Runtime; what it cannot read or run is refused."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    app = page.partition("### FastAPI\n\n```python\n")[2].partition("```")[0]
    write_arrays(tmp_path / "given.npz", inputs_of(1))
    write_arrays(tmp_path / "few.npz", {"a": inputs_of(1)["a"]})
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", app + _ASK, str(tmp_path)]

    asked = subprocess.run(command, check=True, cwd=built, env=environ, stdout=subprocess.PIPE)

    assert asked.stdout.split() == [b"200", b"422", b"422", b"422"]
    outputs = read_arrays(tmp_path / "returned.npz")
    expected = run((built / "network.onnx").read_bytes(), inputs_of(1))
    for actual, reference in zip(outputs.values(), expected, strict=True):
        assert difference(actual, reference) < 1e-6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index": np.array([0, 5])}, "ValueError: input 'index' has the index 5"),
        ({"a": np.zeros((2, 8))}, "ValueError: input 'a' must have dtype float32, got float64"),
        ({"e": np.zeros(1)}, "ValueError: input 'e' is unknown; inputs are a, b"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(
    built: Path, call: Call, changes: dict[str, Array], message: str
) -> None:
    """The error has the type that the tuner's own has."""
    with pytest.raises(RuntimeError, match=message):
        call(built / "network.lib", inputs_of(0) | changes)


def test_threads_may_share_a_library(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has its own outputs."""
    monkeypatch.setattr(core, "_FILE", built / "libtuner.so")
    library = core.load(built / "network.lib")
    expected = [library(inputs_of(seed))["y"] for seed in (0, 1)]

    with ThreadPoolExecutor(2) as threads:
        outputs = [*threads.map(library, map(inputs_of, [0, 1] * 200))]

    for number, output in enumerate(outputs):
        np.testing.assert_array_equal(output["y"], expected[number % 2])


def test_an_output_without_its_dtype_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the package that has it."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)

    with pytest.raises(WorkError, match="outputs of bfloat17 need the package ml_dtypes"):
        core._dtype("bfloat17")


def test_inputs_are_padded_to_buckets(bucketed: Path, call: Call) -> None:
    """Outputs are cut to the size of the input."""
    table = np.arange(9, dtype=np.float32).reshape(3, 3)

    masks = {name: np.zeros((3, 1), dtype) for name, dtype in MASKS.items()}
    outputs = call(bucketed, {"index": np.array([2, 0, 1]), "table": table, **masks})

    np.testing.assert_array_equal(outputs["y"], -table[[2, 0, 1]])


def test_a_tail_runs_after_the_program(tailed: Path, call: Call) -> None:
    """ONNX Runtime computes the other outputs from what the program returns."""
    outputs = call(tailed, inputs_of(0))

    assert list(outputs) == ["z", "y"]
    np.testing.assert_array_equal(outputs["z"], -outputs["y"])

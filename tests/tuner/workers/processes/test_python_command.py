"""No process reads or imports from the current folder, or from beside a model or a program."""

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli import ROOT, Cli, finish
from tests.engines import toy
from tests.services import free_port, is_ready
from tests.waiting import wait_for
from tuner.workers.pool import Pool, WorkerSettings

# Modules that Python itself, workers and engines import, or that a package looks for.
_EXTRA = (
    "sitecustomize", "usercustomize", "encodings", "site", "signal", "numpy", "scipy", "tvm",
    "tvm_ffi", "onnx", "onnxslim", "onnxruntime", "torch", "xgboost", "triton", "cupy", "ml_dtypes",
    "openvino", "tuner", "records", "scheduler", "psutil", "sqlalchemy", "msgspec", "runpy",
    "uvicorn", "uvloop", "fastapi", "multiprocessing", "subprocess", "ctypes", "fsspec", "yaml",
)  # fmt: skip
_DECOY = "open({marker!r}, 'a').write(__file__ + chr(10)); raise SystemExit('a decoy ran')\n"
_LIKE_BUILD = pytest.mark.slow("10 s each; a build starts the same processes and more")
_IN_ACCESS = 0x1
_EVENT = "iIII"
_EVENT_BYTES = struct.calcsize(_EVENT)
_PROGRAM = """
import sys
first = sys.path.pop(0)
import os
from pathlib import Path
from tuner.workers.pool import Pool, WorkerSettings
sys.path.append(first)
os.environ["PYTHONPATH"] += os.pathsep
with Pool(WorkerSettings(1, Path({log!r}))) as pool:
    pool.call("math", "sqrt", 4.0)
"""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Modules that a worker imports before its sandbox, and more."""
    with Pool(WorkerSettings(1, tmp_path_factory.mktemp("names") / "worker.log")) as pool:
        names = pool.call("tests.tuner.workers.inside_sandbox", "modules")
    assert {"signal", "json", "socket", "pickle", "tempfile"} <= set(names)
    return {*names, *_EXTRA} - {"tests", "__main__"}


@pytest.fixture
def run(tmp_path: Path, names: set[str]) -> Iterator[Cli]:
    """Commands, and a folder with a model and decoys that no process may read."""
    folder, marker = tmp_path / "downloads", tmp_path / "marker"
    folder.mkdir()
    decoys = {f"{name}.py" for name in names}
    for decoy in decoys:
        (folder / decoy).write_text(_DECOY.format(marker=str(marker)))
    shape = [1, 8]
    node = helper.make_node("Relu", ["x"], ["y"])
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    graph = helper.make_graph([node], "relu", [given], [made])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")
    with _read_in(folder) as read:
        yield Cli(tmp_path, {"TUNER_N_BUILDERS": "1"})
    assert not marker.exists(), marker.read_text()
    assert not read & {*decoys, "matplotlibrc"}


@contextmanager
def _read_in(folder: Path) -> Iterator[set[str]]:
    """Yield a set which, after the block, has the names of the files that anyone read in it."""
    read: set[str] = set()
    libc = ctypes.CDLL(None, use_errno=True)
    with os.fdopen(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as events:
        assert libc.inotify_add_watch(events.fileno(), os.fsencode(folder), _IN_ACCESS) >= 0
        yield read
        while data := events.read(2**16):
            while data:
                *_, length = struct.unpack_from(_EVENT, data)
                name, data = data[_EVENT_BYTES:][:length], data[_EVENT_BYTES + length :]
                read.add(name.rstrip(b"\0").decode())


@pytest.fixture
def folder(run: Cli) -> Path:
    """The folder of the model."""
    return run.folder / "downloads"


def _start(cli: Cli, folder: Path, *words: str, option: str = "-P") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, option, *words],
        env=cli.environ(),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.in_ci
@pytest.mark.slow("5 s a command")
@pytest.mark.tvm
@pytest.mark.parametrize(
    ("words", "sandbox"),
    [
        pytest.param("tasks model.onnx", "off", marks=_LIKE_BUILD),
        pytest.param("devices", "auto", marks=_LIKE_BUILD),
        pytest.param("doctor", "auto", marks=_LIKE_BUILD),
        # It loads the model, too.
        ("build model.onnx -o out", "auto"),
    ],
    ids=lambda text: text.partition(" ")[0],
)
def test_commands_import_nothing_from_the_current_folder(
    run: Cli, folder: Path, words: str, sandbox: str
) -> None:
    """Neither do the workers that they start, with a model of that folder."""
    run.settings["TUNER_WORKER_SANDBOX"] = sandbox
    answer = finish(_start(run, folder, "-m", "tuner", *words.split()))

    assert answer.status == 0, answer.out


@pytest.mark.in_ci
@pytest.mark.slow("5 s: imports Matplotlib")
def test_plots_take_no_settings_from_the_current_folder(run: Cli, folder: Path) -> None:
    """Matplotlib would take them, and warn of these."""
    (folder / "matplotlibrc").write_text("font.size: large\nno.such.setting: 1\n")
    curve = next((ROOT / "benchmarks" / "scheduler" / "curves").glob("*.jsonl.gz"))
    words = ("replay", str(curve), "--allocator", "gradient", "--plot", "curves.png")
    answer = finish(_start(run, folder, "-m", "tuner", *words))

    assert answer.status == 0, answer.out
    assert "matplotlibrc" not in answer.out
    assert (folder / "curves.png").exists()


def test_python_m_leaves_out_the_current_folder(run: Cli, folder: Path) -> None:
    """Python adds it, and the package takes it away before it imports anything else.

    Python itself imports some modules before.
    """
    for decoy in folder.glob("*.py"):
        if decoy.stem not in ("json", "numpy", "re", "signal", "socket", "sqlalchemy", "typer"):
            decoy.unlink()
    answer = finish(_start(run, folder, "-m", "tuner", "tasks", "--help", option="-B"))

    assert answer.status == 0, answer.out


@pytest.mark.in_ci
@pytest.mark.slow("10 s: starts a service")
def test_a_service_imports_nothing_from_the_current_folder(run: Cli, folder: Path) -> None:
    """Its API, its worker, and the processes that load a submitted model."""
    run.settings["TUNER_ENGINE"] = toy.NAME
    port = free_port()
    process = _start(run, folder, "-m", "tuner", "serve", "--port", str(port))
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: is_ready(url) or process.poll() is not None)
        words = ("--server", url, "tasks", "model.onnx")
        answer = finish(_start(run, folder, "-m", "tuner", *words))
        assert answer.status == 0, answer.out
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.parametrize("place", ["current folder", "folder of the program"])
def test_workers_of_a_program_import_nothing_from_its_folder(
    run: Cli, folder: Path, place: str
) -> None:
    """Python puts either folder on the path of a program; an empty entry in PYTHONPATH, too."""
    code = _PROGRAM.format(log=str(run.folder / "worker.log"))
    if place == "current folder":
        words, current = ["-c", code], folder
    else:
        (folder / "program.py").write_text(code)
        words, current = [str(folder / "program.py")], run.folder
    done = subprocess.run(
        [sys.executable, *words],
        env=run.environ(),
        cwd=current,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_a_program_among_the_packages_hides_none(tmp_path: Path) -> None:
    """A file in the folder of installed packages may be a program, and its folder stays."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "program.py").write_text(
        "from tuner.workers.processes.python_command import import_folders\n"
        "print(import_folders())\n"
    )
    command = [sys.executable, str(folder / "program.py")]
    named = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    shown = subprocess.run(command, env=named, cwd=ROOT, capture_output=True, check=True, text=True)

    assert str(folder) in shown.stdout


@pytest.mark.parametrize("name", ["records.py", "scheduler/__init__.py"])
def test_a_module_of_the_user_named_like_a_package_is_named(tmp_path: Path, name: str) -> None:
    """The error names the file that is in the way, and what to do."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    done = subprocess.run(
        [sys.executable, "-c", "import tuner; tuner.extract('zoo:mlp')"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert f"which {tmp_path / name} hides" in done.stderr

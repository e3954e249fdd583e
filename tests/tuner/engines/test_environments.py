"""Environments of engines: their Python, their state, and their installation."""

import importlib.util
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import msgspec
import pytest

from tests.environments import ROOT
from tuner.engines import environments, installing
from tuner.engines.environments import ENGINES, Environment, Interpreter
from tuner.errors import RequestError, WorkError
from tuner.networks.base import LoadedModel
from tuner.settings import Settings, read_settings
from tuner.workers.confinement.sandbox_paths import Access
from tuner.workers.factory import SplitEnvPool, builder_pool, fresh_worker
from tuner.workers.pool import Pool, WorkerSettings


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of another environment that has msgspec and no other package."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(Path(msgspec.__file__).parent, packages / "msgspec")
    return folder / "bin" / "python"


def settings_of(folder: Path, **flags: str) -> Settings:
    """Return settings that ignore the environment of the developer."""
    return read_settings({"data_dir": folder, **flags}, {})


@pytest.mark.parametrize(
    ("name", "module", "environment"),
    [
        ("relax", ENGINES["relax"], ""),
        ("relay", ENGINES["relay"], "relay"),
        (ENGINES["relay"], ENGINES["relay"], "relay"),
        ("tests.engines.toy", "tests.engines.toy", ""),
        ("relay:tests.engines.toy", "tests.engines.toy", "relay"),
    ],
)
def test_an_engine_has_a_name_or_is_a_module(
    tmp_path: Path, name: str, module: str, environment: str
) -> None:
    """Either names its environment; a module may be assigned to one."""
    settings = settings_of(tmp_path, engine=name)

    assert (settings.engine, settings.environment) == (module, environment)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("relai", "engines are relax, relay"), ("nowhere:toy", "environments are relay")],
)
def test_an_unknown_engine_is_refused(tmp_path: Path, name: str, hint: str) -> None:
    """The message lists those that exist."""
    with pytest.raises(RequestError, match=hint):
        settings_of(tmp_path, engine=name)


def test_an_engine_that_is_not_installed_says_what_to_type(tmp_path: Path) -> None:
    """No worker is started."""
    settings = settings_of(tmp_path, engine="relay")

    with pytest.raises(RequestError, match="type: tuner engine install relay"):
        builder_pool(settings, 1)


def test_an_environment_with_other_requirements_is_outdated(tmp_path: Path) -> None:
    """An environment that the tuner did not make is always ready."""
    environment = Environment.within(tmp_path, "relay")
    environment.python.parent.mkdir()
    environment.python.touch()
    states = [environment.state]
    (tmp_path / "requirements.sha256").write_text("of an older version")
    states.append(environment.state)
    environment.mark_managed(tmp_path)

    assert [*states, environment.state] == ["ready", "outdated", "ready"]


def test_workers_run_in_another_environment(other: Path, tmp_path: Path) -> None:
    """They import the tuner's packages and no others of its environment, even with PYTHONPATH."""
    interpreter = Interpreter(str(other), {"tuner": str(ROOT), "tests": str(ROOT)})
    settings = WorkerSettings(1, tmp_path / "worker.log", interpreter=interpreter)

    with Pool(settings) as pool:
        (prefix, has_numpy) = pool.call("tests.tuner.engines.inside", "look", "numpy")

    assert prefix == str(other.parents[1])
    assert not has_numpy
    assert importlib.util.find_spec("numpy") is not None


def test_calls_without_an_engine_run_in_the_tuners_environment(other: Path, tmp_path: Path) -> None:
    """Models are read there, whatever engine tunes them."""
    settings = settings_of(tmp_path, engine="relay", relay_python=str(other))

    with fresh_worker(settings, access=Access(writes=(tmp_path,))) as pool:
        loaded = pool.call(
            "tuner.networks.worker",
            "load_model",
            "zoo:mlp",
            {},
            None,
            str(tmp_path),
            returns=LoadedModel,
        )

    assert isinstance(pool, SplitEnvPool)
    assert loaded.name == "mlp"


def test_a_failed_installation_leaves_the_old_environment(tmp_path: Path) -> None:
    """A new environment replaces the old one only when it is complete."""
    environment = Environment.within(tmp_path / "relay", "relay")
    environment.folder.mkdir()
    environment.mark_managed(environment.folder)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)

    with pytest.raises(WorkError, match="failed with status 3"):
        installing.install(environment, str(broken))

    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "python",
        "relay",
        "requirements.sha256",
    ]


def test_other_folders_are_not_replaced(tmp_path: Path) -> None:
    """A folder that was named by mistake stays."""
    environment = Environment.within(tmp_path / "home", "relay")
    environment.folder.mkdir()
    (environment.folder / "letter").touch()

    with pytest.raises(RequestError, match="home exists and is not an environment"):
        installing.install(environment, sys.executable)

    assert [path.name for path in tmp_path.rglob("*")] == ["home", "letter"]


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    """The message names it."""
    (tmp_path / "file").touch()

    with pytest.raises(RequestError, match="cannot make an environment in "):
        installing.install(Environment.within(tmp_path / "file" / "relay", "relay"), sys.executable)


def test_the_requirements_are_those_of_the_tuner() -> None:
    """Packages that both environments have are pinned to equal versions."""
    own = dict(line.split("==") for line in _pins(ROOT / "constraints.txt"))
    relay = dict(line.split("==") for line in _pins(environments.requirements_file("relay")))

    shared = own.keys() & relay.keys()
    assert {"numpy", "onnx", "xgboost-cpu"} <= shared
    assert {name: relay[name] for name in shared} == {name: own[name] for name in shared}


def test_loading_module_of_relay_does_not_import_tvm() -> None:
    """All versions of TVM share one package name, so this process must import neither."""
    program = (
        "import sys; from tuner.settings import read_settings\n"
        "read_settings({'engine': 'relay'}, {})\n"
        "from tuner.engines.relay import loading; print('tvm' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout.strip() == "False"


def _pins(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line.split(";")[0].strip() for line in lines if "==" in line and line[0] != "#"]

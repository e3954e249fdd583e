"""Selection of the Python that runs an engine, and the errors where it is missing."""

import importlib.util
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pebble
import pytest

from tests.environments import ROOT
from tuner.engines import environments, installing
from tuner.engines.environments import ENGINES, Environment, Interpreter
from tuner.errors import RequestError, WorkError
from tuner.settings import Settings, read_settings
from tuner.workers.pool import Pool, WorkerSettings
from tuner.workers.pools import builder_pool, fresh_worker
from tuner.workers.split_env_pool import SplitEnvPool


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another environment, with what workers are spoken to by and nothing else."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(Path(pebble.__file__).parent, packages / "pebble")
    return folder / "bin" / "python"


def settings_of(folder: Path, **flags: str) -> Settings:
    """Settings without those of the developer."""
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
    """Both say in which environment it runs; a module may be put into one."""
    settings = settings_of(tmp_path, engine=name)

    assert (settings.engine, settings.environment) == (module, environment)


@pytest.mark.parametrize(
    ("name", "hint"), [("relai", "engines are relax, relay"), ("nowhere:toy", "there is relay")]
)
def test_an_unknown_engine_is_refused(tmp_path: Path, name: str, hint: str) -> None:
    """The message says which there are."""
    with pytest.raises(RequestError, match=hint):
        settings_of(tmp_path, engine=name)


def test_an_engine_that_is_not_installed_says_what_to_type(tmp_path: Path) -> None:
    """And nothing is started."""
    settings = settings_of(tmp_path, engine="relay")

    with pytest.raises(RequestError, match="type: tuner engine install relay"):
        builder_pool(settings, 1)


def test_an_environment_of_another_version_is_outdated(tmp_path: Path) -> None:
    """It was made of other requirements than those of today."""
    environment = Environment.within(tmp_path, "relay")
    environment.python.parent.mkdir()
    environment.python.touch()
    states = [environment.state]
    (tmp_path / "requirements.sha256").write_text("of yesterday")
    states.append(environment.state)
    environment.stamp(tmp_path)

    assert [*states, environment.state] == ["ready", "outdated", "ready"]


def test_workers_run_in_another_environment(other: Path, tmp_path: Path) -> None:
    """They find our packages and nothing beside them, whatever PYTHONPATH says."""
    interpreter = Interpreter(str(other), {"tuner": str(ROOT), "tests": str(ROOT)})
    settings = WorkerSettings(1, tmp_path / "worker.log", interpreter=interpreter)

    with Pool(settings) as pool:
        (prefix, is_found) = pool.call("tests.tuner.engines.inside", "look", "numpy")

    assert prefix == str(other.parents[1])
    assert not is_found
    assert importlib.util.find_spec("numpy") is not None


def test_what_is_no_engines_stays_with_our_python(other: Path, tmp_path: Path) -> None:
    """Models are read here, whatever engine tunes them."""
    settings = settings_of(tmp_path, engine="relay", relay_python=str(other))

    with fresh_worker(settings) as pool:
        loaded = pool.call(
            "tuner.networks.worker", "load_model", "zoo:mlp", {}, None, str(tmp_path)
        )

    assert isinstance(pool, SplitEnvPool)
    assert loaded.name == "mlp"


def test_an_environment_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    """An environment is made under another name and renamed when complete."""
    environment = Environment.within(tmp_path / "relay", "relay")
    environment.folder.mkdir()
    environment.stamp(environment.folder)
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


def test_what_is_no_environment_of_ours_is_not_replaced(tmp_path: Path) -> None:
    """Whatever was named by mistake stays."""
    environment = Environment.within(tmp_path / "home", "relay")
    environment.folder.mkdir()
    (environment.folder / "letter").touch()

    with pytest.raises(RequestError, match="home exists and is not an environment"):
        installing.install(environment, sys.executable)

    assert [path.name for path in tmp_path.rglob("*")] == ["home", "letter"]


def test_an_environment_is_not_made_where_nothing_can_be(tmp_path: Path) -> None:
    """The message says where."""
    (tmp_path / "file").touch()

    with pytest.raises(RequestError, match="cannot make an environment in "):
        installing.install(Environment.within(tmp_path / "file" / "relay", "relay"), sys.executable)


def test_the_requirements_are_those_of_the_tuner() -> None:
    """Packages that both sides of a call use have one version."""
    ours = dict(line.split("==") for line in _pins(ROOT / "constraints.txt"))
    theirs = dict(line.split("==") for line in _pins(environments.requirements_of("relay")))

    shared = {name for name in theirs if name in ours}
    assert {"numpy", "onnx", "xgboost-cpu"} <= shared
    assert {name: theirs[name] for name in shared} == {name: ours[name] for name in shared}


def test_the_worker_of_relay_is_not_imported_by_ours() -> None:
    """Two TVMs have one name: nothing of the other one is looked for in this process."""
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

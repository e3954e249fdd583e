"""The wheel works in an environment that has what it requires, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

import numpy as np
import pytest

from tests.deploy.wheels import LOAD
from tests.docker.images import closure

pytestmark = [
    pytest.mark.in_ci,
    pytest.mark.slow("15 s: builds a wheel and runs it in an environment of its own"),
]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and the packages that its metadata requires."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    (packages,) = (folder / "env" / "lib").glob("python3*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (installed,) = metadata.distributions(name="subgraph-tuner", path=[str(packages)])
    for name in closure(installed.requires or ()):
        for file in metadata.files(name) or ():
            if ".." not in file.parts:
                _link(Path(str(file.locate())), packages / file)
    return folder / "env" / "bin" / "python"


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    """Run the environment's Python in a folder of its own."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TUNER_"))}
    environ |= {"TUNER_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [environment, *arguments],
            capture_output=True, text=True, check=False, cwd=tmp_path, env=environ, timeout=120,
        )  # fmt: skip

    return run


def test_the_wheel_builds_and_runs_a_network(run: Run, tmp_path: Path) -> None:
    """Neither needs an extra."""
    done = run("-m", "tuner", "build", "zoo:mlp", "-o", "mlp.lib")
    assert done.returncode == 0, done.stderr

    done = run("-c", LOAD, "mlp.lib", "outputs.npz")

    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "outputs.npz") as outputs:
        assert all(np.isfinite(outputs[name]).all() for name in outputs)


def test_a_missing_extra_is_named(run: Run) -> None:
    """The service needs more than tuning does."""
    done = run("-m", "tuner", "serve")

    assert done.returncode == 2
    assert "serving needs the extra serve: pip install" in done.stderr


def test_links_of_the_description_work_on_an_index(wheel: Path) -> None:
    """Those of README.md are relative to the repository."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        description = archive.read(name).decode().partition("\n\n")[2]

    targets = re.findall(r"\]\(([^)]*)\)", description)

    assert len(targets) > 10
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def _link(source: Path, target: Path) -> None:
    """Give a file another name, and what it was compiled to; copy it if it lies on another disk."""
    if target.exists() or not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    if source.suffix == ".py":
        compiled = Path(cache_from_source(str(source)))
        _link(compiled, target.parent / "__pycache__" / compiled.name)

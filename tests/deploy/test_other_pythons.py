"""The wheel is installed from an index and works on every Python that TVM has wheels for."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.deploy.wheels import LOAD
from tests.docker.images import ROOT

_PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@pytest.mark.slow("minutes: installs 640 MB for each Python")
@pytest.mark.parametrize("version", _PYTHONS)
def test_the_wheel_is_installed_and_builds_a_network(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    """Its requirements have wheels: nothing is compiled."""
    interpreter = shutil.which(f"python{version}")
    if (
        not interpreter
        or subprocess.run([interpreter, "-c", "import ensurepip"], check=False).returncode
    ):
        pytest.skip(f"python{version} is not installed")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TUNER_"))}
    environ |= {"TUNER_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path)}

    def run(*command: str | Path) -> None:
        subprocess.run(command, check=True, cwd=tmp_path, env=environ)

    run(interpreter, "-m", "venv", "env")
    python = tmp_path / "env" / "bin" / "python"
    pip = ("-m", "pip", "install", "-q", "--only-binary", ":all:")
    run(python, *pip, "-c", ROOT / "constraints.txt", wheel)
    run(python, "-m", "tuner", "tune", "zoo:mlp", "--trials", "4")
    run(python, "-m", "tuner", "build", "zoo:mlp", "-o", "mlp.lib")
    run(python, "-c", LOAD, "mlp.lib", "outputs.npz")

    with np.load(tmp_path / "outputs.npz") as outputs:
        assert all(np.isfinite(outputs[name]).all() for name in outputs)

"""The tutorial for a CPU, followed to the letter: its commands, then its Python."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

pytestmark = pytest.mark.tvm

_TEXT = (ROOT / "docs" / "tutorial-cpu.md").read_text()
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", _TEXT, re.DOTALL | re.MULTILINE)
# Of timeout: the command ended by itself, or was interrupted.
_STOPPED = (0, 124)


def run(command: list[str], folder: Path, environ: Mapping[str, str]) -> tuple[int, str]:
    """Run a command; its exit status, and what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def python_blocks(first: int, last: int | None) -> str:
    """Join the Python of the tutorial."""
    return "\n".join([text for kind, text in _BLOCKS if kind == "python"][first:last])


@pytest.mark.guards_data
@pytest.mark.slow("two minutes of real tuning")
def test_the_tutorial_for_a_cpu_works(tmp_path: Path) -> None:
    """Every command ends well, and Python goes on from what the commands did."""
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TUNER_DATA_DIR": str(tmp_path / "data"),
    }
    define, rest = python_blocks(0, 1), python_blocks(0, None)
    status, told = run([sys.executable, "-c", define], tmp_path, environ)
    assert status == 0, told
    for kind, text in _BLOCKS:
        for line in re.findall(r"^\$ (.*)", text, re.MULTILINE) if kind == "console" else ():
            status, told = run(["bash", "-c", line], tmp_path, environ)
            assert status in (_STOPPED if line.startswith("timeout") else (0,)), f"{line}\n{told}"

    status, told = run([sys.executable, "-c", rest], tmp_path, environ)

    assert status == 0, told
    assert "32 0" in told.splitlines()  # trials, of which Python spent none
    assert re.search(r"^\d\.\d+e-0[5-9]$", told, re.MULTILINE), told  # the largest difference

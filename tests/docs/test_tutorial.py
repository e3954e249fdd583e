"""The tutorial for a CPU works as written: its commands, then its Python."""

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
# Exit statuses of timeout: the command ended by itself, or was interrupted.
_STOPPED = (0, 124)


def run(command: list[str], folder: Path, environ: Mapping[str, str]) -> tuple[int, str]:
    """Run a command, and return its exit status and output."""
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
    """Join the Python blocks of the tutorial."""
    return "\n".join([text for kind, text in _BLOCKS if kind == "python"][first:last])


@pytest.mark.guards_data
@pytest.mark.slow("two minutes of real tuning")
def test_the_tutorial_for_a_cpu_works(tmp_path: Path) -> None:
    """Every command succeeds, and Python continues from the results of the commands."""
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TUNER_DATA_DIR": str(tmp_path / "data"),
    }
    define, rest = python_blocks(0, 1), python_blocks(0, None)
    status, output = run([sys.executable, "-c", define], tmp_path, environ)
    assert status == 0, output
    for kind, text in _BLOCKS:
        for line in re.findall(r"^\$ (.*)", text, re.MULTILINE) if kind == "console" else ():
            status, output = run(["bash", "-c", line], tmp_path, environ)
            assert status in (_STOPPED if line.startswith("timeout") else (0,)), f"{line}\n{output}"

    status, output = run([sys.executable, "-c", rest], tmp_path, environ)

    assert status == 0, output
    assert "32 0" in output.splitlines()  # trials in all, and trials that Python spent
    assert re.search(r"^\d\.\d+e-0[5-9]$", output, re.MULTILINE), output  # the largest difference

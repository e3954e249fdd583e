"""The tutorial for a CPU works as written: its commands, then its Python."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.docs.documents import ROOT

pytestmark = pytest.mark.tvm

_TEXT = (ROOT / "docs" / "tutorial-cpu.md").read_text()
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", _TEXT, re.DOTALL | re.MULTILINE)
# Exit statuses of timeout: the command ended by itself, or was interrupted.
_STOPPED = (0, 124)
# Far above what a command takes, beside other work too: only one that hangs reaches it.
_HANG_SECS = 1200.0


def run(command: list[str], folder: Path, environ: Mapping[str, str]) -> tuple[int, str]:
    """Run a command, and return its exit status and output; a hang fails with the output."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=_HANG_SECS)
    except subprocess.TimeoutExpired:
        for child in [*psutil.Process(process.pid).children(recursive=True), process]:
            child.kill()
        output, _ = process.communicate()
        pytest.fail(f"{command} did not end within {_HANG_SECS:g} s\n{output}")
    return process.returncode, output


def python_blocks(first: int, last: int | None) -> str:
    """Join the Python blocks of the tutorial."""
    return "\n".join([text for kind, text in _BLOCKS if kind == "python"][first:last])


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
            expected = _STOPPED if line.startswith("timeout") else (0,)
            assert status in expected, f"status {status} of {line}\n{output}"

    status, output = run([sys.executable, "-c", rest], tmp_path, environ)

    assert status == 0, output
    assert "32 0" in output.splitlines()  # trials in all, and trials that Python spent
    (difference,) = re.findall(r"^[\d.]+e-\d+$|^0\.0$", output, re.MULTILINE)
    assert float(difference) < 1e-4, output

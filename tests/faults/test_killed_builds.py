"""A build that is killed at any moment costs its own work alone."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import tuner
from tests.cli import Cli, finish
from tests.forked import Process

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


@pytest.mark.parametrize(
    "n_kills",
    [
        pytest.param(2, marks=[pytest.mark.slow("half a minute of builds"), pytest.mark.in_ci]),
        pytest.param(60, marks=pytest.mark.slow("ten minutes of builds")),
    ],
    ids=["few", "many"],
)
def test_killed_builds_leave_nothing_broken(tmp_path: Path, n_kills: int) -> None:
    """After kill -9 at any moment, the next build succeeds without waiting."""
    cli = Cli(tmp_path)
    whole = time.monotonic()
    assert cli("build", "zoo:mlp", "-o", "first", "--json").status == 0
    whole = time.monotonic() - whole
    drawn = random.Random(5)
    for number in range(n_kills):
        # Another network each time, so that there is always something to compile and to link.
        process = cli.start("build", f"zoo:mlp?classes={number + 20}", "-o", "killed", "--json")
        kill_after(process, drawn.uniform(0.1, 1.0) * whole)

    answer = cli("build", "zoo:mlp?classes=20", "-o", "last", "--json")

    assert answer.status == 0, answer.err
    assert "damaged" not in answer.err
    checked = cli("cache", "verify", "--json")
    assert (checked.status, checked.json["damaged"]) == (0, []), checked
    assert cli("cache", "gc", "--json").status == 0
    assert not list((cli.data_dir / "cache").glob("*/.tmp/*"))
    data = np.random.default_rng(0).random((1, 1, 28, 28), dtype=np.float32)
    (outputs,) = tuner.load(tmp_path / "last")(data=data).values()
    assert np.isfinite(outputs).all()
    assert not (tmp_path / "killed").exists() or tuner.load(tmp_path / "killed")


def kill_after(process: Process, secs: float) -> None:
    """Kill a command's whole group, if it lives for so long."""
    try:
        process.wait(secs)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    finish(process)

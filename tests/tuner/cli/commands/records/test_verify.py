"""``tuner records verify`` on records of another version."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cli import Cli, finish
from tests.engines import toy
from tests.engines.toy_network import open_sessions
from tests.engines.upgrades import age
from tests.tuner.cli.commands.conftest import Shell

N_TASKS = toy.N_TASKS


@pytest.fixture
def upgraded(tmp_path: Path) -> Cli:
    """A data directory with a network tuned by version 1."""
    cli = Cli(tmp_path, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})
    options = ("--trials", "16", "--trials-per-round", "4", "--cost-model", "random")
    assert cli("tune", "zoo:mlp", *options).status == 0
    age(open_sessions(cli.url), tvm="1")
    return cli


@pytest.mark.slow("compiles kernels for many seconds")
def test_records_are_verified_once(upgraded: Cli) -> None:
    """The second run skips the records of the first, and a third run has nothing left."""
    early = upgraded("build", "zoo:mlp", "-o", "mlp.lib", "--strict")
    first = upgraded("records", "verify", "--top", "1", "--json")
    rest = upgraded("records", "verify", "zoo:mlp")
    again = upgraded("records", "verify")

    assert early.status == 2
    assert "4 of them have claims or records of another version" in early.complaint
    assert first.status == 0, first.err
    (row,) = first.json["records"]
    assert (row["name"], row["weight"], row["best"]) == ("heavy[1]", 3, True)
    assert row["differs"] == {"tvm": ["1", None]}
    assert row["latency_secs"] == pytest.approx(row["old_latency_secs"])
    assert (first.json["verified"], first.json["failed"]) == (1, 0)
    assert first.json["left"] == N_TASKS - 1
    assert "1/1 heavy[1]:" in first.err
    assert rest.status == 0, rest.err
    assert "3 of 3 records verified" in rest.out
    assert "tvm 1 -> none" in rest.out
    assert again.status == 0
    assert "Every subgraph with records has one of this version." in again.out
    strict = upgraded("build", "zoo:mlp", "-o", "mlp.lib", "--strict", "--json")
    assert strict.status == 0, strict.err


@pytest.mark.slow("compiles kernels of the real engine")
def test_ctrl_c_keeps_the_measured_records(upgraded: Cli) -> None:
    """The same command then measures the others only."""
    before = upgraded.count_records()
    process = upgraded.start("records", "verify", TOY_RUN_SECS="0.7")
    deadline = time.monotonic() + 60
    while upgraded.count_records() == before and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    stopped = finish(process, 60)
    kept = upgraded.count_records() - before

    rest = upgraded("records", "verify", "--json")

    assert stopped.status == 130, stopped.err
    assert "stopped by Ctrl-C" in stopped.complaint
    assert 1 <= kept < N_TASKS
    assert len(rest.json["records"]) == N_TASKS - kept


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["zoo:mlp", "--job", "1"], "MODEL and --job both select"),
        (["--random-weights", "1"], "apply to a MODEL"),
        (["--input", "data=1,4"], "apply to a MODEL"),
        (["--job", "99"], "no job 99; tuner jobs ls lists them"),
        (["--target", "cuda"], "cannot run target cuda"),
        (["--top", "0"], "greater than or equal to 1"),
        (["gone.onnx"], "gone.onnx"),
    ],
)
def test_wrong_requests_are_rejected(shell: Shell, args: list[str], complaint: str) -> None:
    """The error is one line and the status 2."""
    answer = shell("records", "verify", *args, TUNER_ENGINE=toy.NAME)

    assert answer.status == 2
    assert complaint in answer.err


def test_an_empty_database_is_not_a_failure(shell: Shell) -> None:
    """The output says how to create records."""
    answer = shell("records", "verify", "--current", TUNER_ENGINE=toy.NAME)

    assert answer.status == 0
    assert "create them with `tuner tune`" in answer.out


def test_records_are_verified_locally(shell: Shell) -> None:
    """This machine measures, so ``--server`` is rejected."""
    answer = shell("--server", "http://127.0.0.1:9", "records", "verify")

    assert answer.status == 2
    assert "`tuner records verify` works on this machine alone" in answer.err

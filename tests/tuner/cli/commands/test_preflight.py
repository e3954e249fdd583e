"""Settings that a worker cannot honour stop the start, with exit status 2 and the reason."""

import re
from pathlib import Path
from typing import NoReturn

import pytest

from tests.engines import toy
from tests.tuner.cli.commands.conftest import Shell
from tuner.devices import locks
from tuner.service import supervisor, worker
from tuner.workers.confinement import sandbox

COMMANDS = ("worker", "serve")
_SETTINGS = {"TUNER_ENGINE": toy.NAME, "TUNER_WORKER_SANDBOX": "partial"}


def start(*_: object) -> NoReturn:
    """Fail in place of a service that starts."""
    raise AssertionError("it started")


@pytest.fixture(autouse=True)
def _no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "run_worker", start)
    monkeypatch.setattr(supervisor, "supervise", start)
    monkeypatch.setattr(sandbox, "shortcoming", lambda: "it has no Landlock")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TUNER_WORKER_SANDBOX": "required"}, "cannot confine.*no Landlock.*'partial'"),
        ({"TUNER_WORKER_SANDBOX": "auto"}, "cannot confine.*no Landlock.*'partial'"),
        ({"TUNER_RPC": "nonsense"}, "cannot read rpc address 'nonsense'"),
        ({"TUNER_ENGINE": "no.such.engine"}, "unknown engine 'no.such.engine'"),
        ({"TUNER_ENGINE": "relay"}, "engine relay is missing"),
        ({"TUNER_SIGNING_KEY": "/nowhere/key.pem"}, "signing_key: cannot read"),
        ({"TUNER_SIGNATURES": "required"}, "set trusted_keys"),
    ],
)
def test_what_cannot_be_honoured_stops_the_start(
    shell: Shell, command: str, environ: dict[str, str], words: str
) -> None:
    """No process stands by for ever with an error that does not go away."""
    answer = shell(command, **{**_SETTINGS, **environ})

    assert answer.status == 2, answer
    assert re.search(words, answer.err), answer.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_key_that_is_not_one_stops_the_start(shell: Shell, command: str, tmp_path: Path) -> None:
    """The message has the setting and the path."""
    path = tmp_path / "key.pem"
    path.write_text("hello")

    answer = shell(command, **_SETTINGS, TUNER_SIGNING_KEY=str(path))

    assert answer.status == 2
    assert f"signing_key: {path} is not a private key in PEM" in answer.err


@pytest.mark.parametrize("command", COMMANDS)
def test_locks_on_a_shared_file_system_stop_the_start(
    shell: Shell, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that waits for such a lock would wait for another machine."""
    monkeypatch.setattr(locks, "_magic", lambda _descriptor: 0x6969)

    answer = shell(command, **_SETTINGS)

    assert answer.status == 2
    assert "is on NFS" in answer.err


def test_an_api_alone_starts_without_what_workers_need(shell: Shell) -> None:
    """It runs no worker."""
    with pytest.raises(AssertionError, match="it started"):
        shell("serve", "--api-only", TUNER_ENGINE=toy.NAME, TUNER_WORKER_SANDBOX="required")


@pytest.mark.parametrize("command", COMMANDS)
def test_settings_that_can_be_honoured_start(shell: Shell, command: str) -> None:
    """The checks refuse nothing else."""
    with pytest.raises(AssertionError, match="it started"):
        shell(command, **_SETTINGS)

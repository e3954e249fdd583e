"""The real search is a function of seed and records, on any machine."""

import signal
import time
from pathlib import Path

import pytest

from tests.cli import Cli
from tests.engines import replayed
from tests.engines.toy_network import open_sessions, picks_of, trials_of

_COMMAND = ("tune", "zoo:mlp", "--trials", "40", "--trials-per-round", "8", "--seed", "5")


@pytest.mark.tvm
@pytest.mark.slow("a minute: two searches of 40 trials")
def test_two_jobs_with_one_seed_have_the_same_candidates(tmp_path: Path) -> None:
    """Neither builders, nor the order of sets, nor a kill after a training changes them."""
    settings = {"TUNER_ENGINE": replayed.NAME, "TUNER_WORKER_ENVIRONMENT": "PYTHONHASHSEED"}
    calm, rough = (Cli(tmp_path / name, settings) for name in ("calm", "rough"))
    for cli in (calm, rough):
        cli.folder.mkdir()
    many = {"TUNER_N_BUILDERS": "3", "PYTHONHASHSEED": "2"}

    assert calm(*_COMMAND, TUNER_N_BUILDERS="1", PYTHONHASHSEED="1").status == 0
    process = rough.start(*_COMMAND, **many)
    while process.poll() is None and rough.count_records() < 22:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert rough.count_records() < 40
    assert rough(*_COMMAND, **many).status == 0

    assert trials_of(open_sessions(rough.url)) == trials_of(open_sessions(calm.url))
    assert picks_of(open_sessions(rough.url)) == picks_of(open_sessions(calm.url))

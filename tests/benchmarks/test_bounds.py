"""Bounds on the trials that an allocator needs, and the recording of curves."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks._bounds import foresight_trials, oracle_trials
from scheduler.replay import Recording, replay
from tests.engines import toy_peaks
from tests.scheduler.make import of_weights, power_laws
from tuner.job_replay import recording as recordings

_ROOT = Path(__file__).parents[2]


def brute_force(recording: Recording, within: float) -> int:
    """Return the fewest trials of all numbers of rounds that reach the goal."""
    goal = recording.final_secs * (1.0 + within) * (1.0 + 1e-12)
    choices = product(*(range(1, len(task.best_secs) + 1) for task in recording.tasks))
    return min(
        sum(sum(task.n_trials[:n]) for task, n in zip(recording.tasks, rounds, strict=True))
        for rounds in choices
        if sum(
            task.weight * task.best_secs[n - 1]
            for task, n in zip(recording.tasks, rounds, strict=True)
        )
        <= goal
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("within", [0.0, 0.02, 0.3])
def test_the_oracle_is_the_best_of_all_choices(seed: int, within: float) -> None:
    """It tries every number of rounds of every task."""
    recording = power_laws(4, 6, seed)

    assert oracle_trials(recording, within) == brute_force(recording, within)


@pytest.mark.parametrize("name", ["gradient", "tvm", "round-robin"])
def test_no_allocator_beats_the_oracle(name: str) -> None:
    """On curves of any seed."""
    for seed in range(5):
        recording = power_laws(8, 12, seed)
        trials, _ = replay(recording, of_weights(name)).reach(recording.final_secs * 1.02)

        assert oracle_trials(recording, 0.02) <= trials
        assert oracle_trials(recording, 0.02) <= foresight_trials(recording, 0.02)


@pytest.mark.slow("15 s: two jobs of a benchmark")
def test_curves_are_recorded_and_continued(tmp_path: Path) -> None:
    """Every task gets the same number of rounds, and a second call adds to those of the first."""

    def record(n_rounds: int) -> Recording:
        command = ["-m", "benchmarks.record_curves", "zoo:mlp", f"--rounds={n_rounds}"]
        folders = [f"--data-dir={tmp_path / 'data'}", f"--out={tmp_path / 'curves'}"]
        done = subprocess.run(
            [sys.executable, *command, "--trials-per-round=2", *folders],
            cwd=_ROOT,
            env={"PATH": "/usr/bin:/bin", "TUNER_ENGINE": toy_peaks.NAME, "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=120,
        )
        path = Path(json.loads(done.stdout.splitlines()[-1])["path"])
        return recordings.read(path)

    first, second = record(2), record(4)

    assert {len(task.best_secs) for task in first.tasks} == {2}
    assert [task.best_secs[:2] for task in second.tasks] == [task.best_secs for task in first.tasks]
    assert max(len(task.best_secs) for task in second.tasks) >= 4
    assert all(task.roof_secs > 0.0 for task in second.tasks)
    assert second.origin["disturbed_share"] == 0.0
    assert np.isfinite(second.final_secs)

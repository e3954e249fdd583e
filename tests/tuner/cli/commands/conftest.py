"""A filled database, and a shell that runs commands on it."""

import io
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from records import bests, database, jobs, measure_records, networks, picks, targets, tasks
from records.service import leases
from tests.cli import Answer, environ_of
from tuner.cli.main import make_program, run_program

# Building it takes as long as a quick command.
_program = cache(make_program)
_PROGRAM = "from tuner.cli.main import main; main()"


@dataclass(frozen=True)
class Shell:
    """Shell that runs commands on one data directory, in this process."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def data_dir(self) -> Path:
        """Data directory of the commands."""
        return self.folder / "data"

    @property
    def url(self) -> str:
        """URL of the default database."""
        return f"sqlite:///{self.folder / 'data' / 'tuner.db'}"

    def command(self, *args: str) -> list[str]:
        """Return the command line of a process of its own."""
        return [sys.executable, "-c", _PROGRAM, *args]

    def environ(self, **changes: str) -> dict[str, str]:
        """Return the environment of commands; see :func:`tests.cli.environ_of`."""
        return {**environ_of(self.folder), **self.settings, **changes}

    def __call__(self, *args: str, stdin: str = "", **environ: str) -> Answer:
        """Run a command to its end."""
        out, err = io.StringIO(), io.StringIO()
        status: object = 0
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["tuner", *args])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            patch.chdir(self.folder)
            variables = self.environ(**environ)
            for name in set(os.environ) - set(variables):
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                run_program(_program())
            except SystemExit as end:
                status = end.code or 0
        assert isinstance(status, int)
        return Answer(status, out.getvalue(), err.getvalue())


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell whose data directory does not exist yet."""
    return Shell(tmp_path)


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SQLite file with the records of two jobs; see ``fill``."""
    path = tmp_path_factory.mktemp("filled") / "tuner.db"
    fill(f"sqlite:///{path}")
    return path


@pytest.fixture
def tuned(shell: Shell, filled: Path) -> Shell:
    """A shell with the records of two jobs; see ``fill``."""
    folder = shell.folder / "data"
    folder.mkdir(mode=0o700)
    shutil.copy(filled, folder)
    return shell


@pytest.fixture
def write(tuned: Shell) -> Callable[[Callable[[Any], Any]], None]:
    """Function that changes the database of ``tuned`` in one transaction."""

    def run(change: Callable[[Any], Any]) -> None:
        engine = database.open_database(tuned.url)
        with database.sessions(engine).begin() as session:
            change(session)
        engine.dispose()

    return run


def fill(url: str) -> None:
    """Store job 1 (small, done, 2 tasks tuned) and job 2 (big, running, its second pick open).

    Job 1: task 1 is best at 2 ms (record 2, confirmed), task 2 at 1 ms (record 3).
    Job 2 on another device: task 3 has one failed trial, task 4 none.
    """
    engine = database.open_database(url)
    with database.sessions(engine).begin() as session:
        here = targets.ensure_target(session, '{"kind":"llvm","mcpu":"znver4"}', {"name": "CPU A"})
        there = targets.ensure_target(session, '{"kind":"llvm"}', {"name": "CPU B"})
        for number, (name, target) in enumerate((("small", here), ("big", there))):
            network = networks.ensure_network(session, f"sha-{name}", name, {})
            workloads = [
                (_workload(f"{number}{i}" * 8, f"dense_{name}_{i}"), i + 1) for i in range(2)
            ]
            networks.record_extraction(session, network.id, target.id, workloads, 3)
            new = jobs.NewJob(
                network_id=network.id,
                target_id=target.id,
                objective="weighted_sum",
                seed=0,
                budget_trials=100,
            )
            jobs.open_job(session, new)
        _finish_first(session)
        _begin_second(session)
    engine.dispose()


def _workload(hashed: str, name: str) -> tasks.NewWorkload:
    return tasks.NewWorkload(hash=hashed, engine="relax", ir=b"ir", flop=2e9, name=name)


def _finish_first(session: Any) -> None:
    for task_id, samples in ((1, [(3e-3, 3e-3), (2e-3, 2e-3)]), (2, [(1e-3, 1.1e-3, 0.9e-3)])):
        terms = {"reason": "warm_up", "newest_record": 0, "priority": 2e9 * task_id}
        (pick,) = picks.add_picks(session, [picks.NewPick(1, task_id, len(samples), terms)])
        for number, secs in enumerate(samples):
            new = measure_records.NewRecord(
                task_id=task_id,
                trace="[]",
                trace_hash=f"t{number}",
                worker="local",
                run_secs=secs,
                verified=True,
                pick_id=pick.id,
            )
            measure_records.add_record(session, new)
        picks.finish_pick(session, pick.id)
    bests.confirm(session, 2, [2e-3])
    bests.choose_confirmed(session, 1)
    jobs.add_spent_secs(session, 1, 61.0)
    jobs.set_state(session, 1, "done")


def _begin_second(session: Any) -> None:
    terms = {"reason": "warm_up", "priority": 2e9}
    (pick,) = picks.add_picks(session, [picks.NewPick(2, 3, 1, terms)])
    new = measure_records.NewRecord(
        task_id=3,
        trace="[]",
        trace_hash="t0",
        worker="local",
        error_kind="build_error",
        error_text="Traceback:\n\x1b[31mno [/bold] such intrinsic",
        pick_id=pick.id,
    )
    measure_records.add_record(session, new)
    picks.finish_pick(session, pick.id)
    terms = {"reason": "gradient", "gain": 1.25e-5, "similarity": None}
    picks.add_picks(session, [picks.NewPick(2, 4, 64, terms)])
    jobs.set_state(session, 2, "running")
    leases.acquire(session, f"{leases.JOB_PREFIX}2", "a process", 3600)

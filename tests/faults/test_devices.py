"""Devices that are lost: in the middle of a round, for ever, under one candidate, or too late."""

import asyncio
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from records import database
from records.measure_records import trace_hash
from records.models import MeasureRecord
from records.tuning import suspects
from records.tuning.suspects import Blame
from tests.engines import faulty_toy, toy
from tests.engines.faults import Control
from tests.faults.conftest import FaultyExecutor, Hall
from tuner.devices import device
from tuner.devices.runners.local import LocalRunner
from tuner.engines.base import RunRequest
from tuner.errors import DeviceLost
from tuner.settings import Settings
from tuner.tuning.session import TuningSession
from tuner.workers.base import Call

_TRIALS = 40
_POISON = '{"task": "one_0", "program": 7}'


@dataclass(frozen=True)
class _Lost:
    """A call whose device was lost before the call arrived, or in the middle of it."""

    call: Call | None = None

    def result(self) -> Any:
        raise DeviceLost("unplugged")

    def __await__(self) -> Generator[Any, None, Any]:
        # The call continues without a waiter, and its result is dropped.
        yield from asyncio.sleep(0).__await__()
        raise DeviceLost("unplugged")


class Unreliable(LocalRunner):
    """A device that can be lost on demand.

    Attributes:
        strikes: Decides before each measurement if the device is lost under it.
        is_gone: True while the device is lost; every call then fails.
        comes_back: True if the device is there for the call after the one that lost it.
    """

    strikes: Callable[[str, Any], bool] = staticmethod(lambda _function, _request: False)
    is_gone = False
    comes_back = True
    n_lost = 0

    def describe(self, spec: str) -> Any:
        """Resolve a target unless the device is lost."""
        return _Lost() if self.is_gone else super().describe(spec)

    def measure(self, function: str, *args: Any, timeout_secs: float) -> Any:
        """Measure unless the device is lost."""
        if self.is_gone:
            return _Lost()
        strikes = self.strikes(function, args[0])
        self.n_lost += strikes
        self.is_gone = strikes and not self.comes_back
        call = super().measure(function, *args, timeout_secs=timeout_secs)
        return _Lost(call) if strikes else call


@dataclass
class Bench(Hall):
    """A hall with two devices that can be lost."""

    a: Unreliable = field(init=False)
    b: Unreliable = field(init=False)

    def __post_init__(self) -> None:
        self.a, self.b = self.workers.runners  # type: ignore[assignment]


@pytest.fixture(scope="module")
def unreliable(control: Control, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two builders, and two devices that can be lost."""
    control.inject()
    settings = Settings(
        "", tmp_path_factory.mktemp("unreliable"), faulty_toy.NAME, 2, worker_sandbox="off"
    )
    pair = [Unreliable(settings, name, shares_cores=False) for name in ("a", "b")]
    with FaultyExecutor(settings, runners=pair) as executor:
        yield executor


@pytest.fixture
def bench(
    unreliable: FaultyExecutor,
    control: Control,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    """An empty database and two present devices that come back soon."""
    monkeypatch.setattr(device, "_MIN_RETRY_SECS", 0.1)
    control.inject()
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    made = Bench(database.sessions(engine), tmp_path, unreliable, control=control)
    for runner in (made.a, made.b):
        runner.strikes, runner.is_gone, runner.n_lost = Unreliable.strikes, False, 0
        runner.comes_back = True
    yield made
    engine.dispose()


def every(n_calls: int, struck: set[str]) -> Callable[[str, Any], bool]:
    """Strike in every ``n_calls``-th run, but never twice under one candidate."""
    seen = [0]

    def strikes(function: str, request: Any) -> bool:
        seen[0] += function == "run"
        if function != "run" or seen[0] % n_calls:
            return False
        trace = faulty_toy.trace_of(request.artifact)
        is_new = trace not in struck
        struck.add(trace)
        return is_new

    return strikes


def on(trace: str) -> Callable[[str, Any], bool]:
    """Strike whenever a trace is run or raced."""

    def strikes(_: str, request: Any) -> bool:
        requests = request if isinstance(request, list) else [request]
        runs = [run for run in requests if isinstance(run, RunRequest)]
        return any(faulty_toy.trace_of(run.artifact) == trace for run in runs)

    return strikes


def tune(bench: Bench) -> dict[str, int]:
    """Tune two jobs to their ends; return the number of trials by device."""
    pair = [bench.job_of(name, _TRIALS) for name in ("one", "two")]
    assert bench.run(*pair).failures == {}
    bench.check_whole(*pair, trials=_TRIALS)
    with bench.sessions() as session:
        made = list(session.scalars(select(MeasureRecord.worker)))
    return {name: made.count(name) for name in sorted(set(made))}


def lost_traces(bench: Bench) -> list[str]:
    """Return the traces that were given up because workers or devices were lost under them."""
    with bench.sessions() as session:
        stmt = select(MeasureRecord.trace).where(MeasureRecord.error_kind == "worker_lost")
        return list(session.scalars(stmt))


def test_device_that_flickers_loses_nothing(bench: Bench) -> None:
    """A device that is lost in every ninth run and back at once costs no trial.

    Each time its result arrives after the candidate was measured elsewhere, and counts once.
    """
    struck: set[str] = set()
    bench.a.strikes, bench.b.strikes = every(9, struck), every(11, struck)

    made = tune(bench)

    assert set(made) == {"a", "b"}
    assert bench.a.n_lost + bench.b.n_lost >= 4
    assert lost_traces(bench) == []


def test_device_that_never_comes_back_leaves_its_rounds_to_the_other(bench: Bench) -> None:
    """No candidate is blamed, however often the device is polled."""
    bench.a.strikes, bench.a.comes_back = every(6, set()), False

    made = tune(bench)

    assert made["a"] < 6
    assert bench.a.n_lost == 1
    assert lost_traces(bench) == []


def test_device_that_breaks_under_whatever_it_runs_costs_few_trials(bench: Bench) -> None:
    """The device claims to be present, and is tried less and less often."""
    bench.a.strikes = every(1, set())

    made = tune(bench)

    assert set(made) <= {"a", "b"}
    assert len(lost_traces(bench)) <= 3


def poisoned_job(bench: Bench, n_losses: int = 0) -> TuningSession:
    """Open a job whose only task is small enough that all its programs are tried.

    Args:
        bench: Bench with the devices.
        n_losses: Devices that earlier coordinators lost under one of the programs.
    """
    bench.a.strikes = bench.b.strikes = on(_POISON)
    tasks = [toy.make_task("one_0", weight=1, base_secs=1e-3, n_programs=16)]
    prepared = bench.prepare("one", extracted=tasks)
    blame = Blame(prepared.tasks[0].task_id, trace_hash(_POISON), 1.0)
    with bench.sessions.begin() as session:
        suspects.add_blames(session, [blame] * n_losses)
    return bench.session(prepared, _TRIALS, trials_per_round=4)


def test_candidate_that_takes_every_device_down_is_given_up_after_two(bench: Bench) -> None:
    """The candidate is quarantined: one record, and no device runs it again."""
    job = poisoned_job(bench)

    bench.run(job)

    assert bench.job(job.job_id).state == "done"
    assert len(bench.trials()) == 16
    # A device that was lost under another candidate is not blamed on this one.
    assert 2 <= bench.a.n_lost + bench.b.n_lost <= 4
    assert lost_traces(bench) == [_POISON]


def test_candidate_that_is_quarantined_already_is_not_run(bench: Bench) -> None:
    """Other rounds lost two devices under it; a round that proposes it loses no other."""
    job = poisoned_job(bench, n_losses=2)

    bench.run(job)

    assert bench.job(job.job_id).state == "done"
    assert len(bench.trials()) == 16
    assert bench.a.n_lost + bench.b.n_lost == 0
    assert lost_traces(bench) == [_POISON]


def test_final_that_takes_every_device_down_ends(bench: Bench) -> None:
    """It is given up, and the job ends."""
    bench.a.strikes = bench.b.strikes = lambda called, _: called == "run_interleaved"
    job = bench.job_of("one", 8)

    bench.run(job)

    assert bench.a.n_lost + bench.b.n_lost <= 2 * 3
    assert bench.job(job.job_id).state == "done"
    assert len(bench.trials()) == 8

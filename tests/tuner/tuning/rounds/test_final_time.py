"""Budgets in seconds include the final: the search leaves time to it, and it ends in time."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from scheduler.budget import Budget
from tests.engines.toy_network import Workshop, bests_of, picks_of
from tuner.devices.device import Device
from tuner.engines.base import Candidate, RunResult
from tuner.errors import WorkError
from tuner.jobs.spec import TuneSpec
from tuner.measure.interleaved_timing import InterleavedTiming
from tuner.tuning.context import TuningContext
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.rounds import finals, round_runner
from tuner.tuning.rounds.final_time import FinalTime
from tuner.tuning.rounds.round_runner import _ResultRecorder
from tuner.tuning.session import TuningSession
from tuner.tuning.tasks.snapshot import JobSnapshot


class SlowMachine:
    """Clock of a machine on which work takes as long as a test says, without waiting.

    Attributes:
        trial_secs: Time added by each trial.
        build_secs: Time added by the builds of each race.
        turn_secs: Time added by each turn of each rival.
        heats: Task, number of rivals and turns of each heat.
        late_secs: Time added so far.
    """

    def __init__(self) -> None:
        self.trial_secs = self.build_secs = self.turn_secs = self.late_secs = 0.0
        self.heats: list[tuple[int, int, int]] = []

    @property
    def order(self) -> list[int]:
        """Tasks in the order of their first heats."""
        return list(dict.fromkeys(task_id for task_id, *_ in self.heats))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SlowMachine:
    """A machine whose clock the coordinator reads."""
    slow = SlowMachine()
    time, build = InterleavedTiming.time, InterleavedTiming.build
    on_result = _ResultRecorder.on_result

    async def build_slowly(timing: InterleavedTiming) -> None:
        slow.late_secs += slow.build_secs
        await build(timing)

    async def time_slowly(
        timing: InterleavedTiming, indices: Sequence[int], device: Device, **options: Any
    ) -> list[RunResult]:
        n_turns = options["n_turns"]
        slow.heats.append((timing._task.task_id, len(indices), n_turns))
        results = await time(timing, indices, device, **options)
        slow.late_secs += slow.turn_secs * len(indices) * n_turns
        return results

    def record_slowly(recorder: _ResultRecorder, candidate: Candidate, result: RunResult) -> None:
        slow.late_secs += slow.trial_secs
        on_result(recorder, candidate, result)

    # Seconds of the real machine do not count: under load, they would use up the budgets.
    monkeypatch.setattr(TuningContext, "now", lambda _: slow.late_secs)
    monkeypatch.setattr(InterleavedTiming, "build", build_slowly)
    monkeypatch.setattr(InterleavedTiming, "time", time_slowly)
    monkeypatch.setattr(_ResultRecorder, "on_result", record_slowly)
    return slow


def confirmed_tasks(workshop: Workshop) -> set[int]:
    """Return the tasks whose best record was in a final."""
    return {task_id for task_id, _, _, confirmed in bests_of(workshop.sessions) if confirmed}


def shares_of(snapshot: JobSnapshot) -> dict[int, float]:
    """Return the share of each task, those first that matter most."""
    rows = sorted(snapshot.rows, key=lambda row: -row.share)
    return {row.task_id: row.share for row in rows}


def test_the_search_leaves_time_to_the_final(workshop: Workshop, machine: SlowMachine) -> None:
    """A rival is expected to take as long as a trial of its task."""
    machine.trial_secs, machine.turn_secs = 4.0, 0.5

    workshop.tune(workshop.prepare(), seconds=400.0, trials_per_round=4)

    assert 350.0 < workshop.job().spent_secs < 400.0
    assert len(confirmed_tasks(workshop)) == 4
    assert Counter(n_turns for *_, n_turns in machine.heats) == {2: 4, 3: 4, 4: 4}


def test_the_search_leaves_at_most_a_fifth(workshop: Workshop, machine: SlowMachine) -> None:
    """However slow trials are, the final gets no more; it takes the winners of fewer heats.

    They end with the budget, but for a first heat whose time was estimated from other races.
    """
    machine.trial_secs, machine.turn_secs = 4.0, 4.0

    workshop.tune(workshop.prepare(), seconds=400.0, trials_per_round=4)

    assert len(workshop.trials()) >= 64
    assert 380.0 < workshop.job().spent_secs < 420.0
    assert 0 < len(machine.heats) < 12


def test_the_time_of_a_final_is_estimated_once_for_a_budget(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its last fifth, of which no more is reserved; a raised budget has an estimate again."""
    estimates: list[JobSnapshot] = []

    def estimate(_final_time: FinalTime, snapshot: JobSnapshot) -> float:
        estimates.append(snapshot)
        return 1e9

    monkeypatch.setattr(FinalTime, "_estimate", estimate)
    snapshot = workshop.tune(workshop.prepare(), 4)
    final_time = FinalTime(workshop.sessions)
    reserved = [
        final_time.reserve_secs(Budget(secs=secs), spent, snapshot)
        for secs, spent in [
            (100.0, 79.0),
            (100.0, 80.0),
            (100.0, 99.0),
            (200.0, 99.0),
            (200, 160.0),
        ]
    ]

    assert reserved == pytest.approx([0.0, 20.0, 20.0, 0.0, 40.0])
    assert len(estimates) == 2


def test_heats_that_do_not_fit_are_left_out(workshop: Workshop, machine: SlowMachine) -> None:
    """Every race has its first heat before; those of small tasks have no other."""
    machine.turn_secs = 1.0

    snapshot = workshop.tune(workshop.prepare(), 200, seconds=40.0)

    assert machine.order == list(shares_of(snapshot))
    turns = [n_turns for *_, n_turns in machine.heats]
    assert turns == sorted(turns)
    assert 1 <= turns.count(3) < turns.count(2) == 4
    assert workshop.job().spent_secs <= 40.0
    assert confirmed_tasks(workshop) == set(machine.order)


def test_races_that_are_not_built_in_time_are_left_out(
    workshop: Workshop, machine: SlowMachine
) -> None:
    """Builds may take half of the time; the tasks that matter least keep their first samples."""
    machine.build_secs = 30.0

    snapshot = workshop.tune(workshop.prepare(), 48, seconds=100.0)

    first, second, *_ = shares_of(snapshot)
    assert confirmed_tasks(workshop) == {first, second} == set(machine.order)


@pytest.mark.parametrize(("turn_secs", "n_tasks"), [(100.0, 1), (0.1, 4)])
def test_a_job_without_time_confirms_what_matters_most(
    workshop: Workshop,
    machine: SlowMachine,
    monkeypatch: pytest.MonkeyPatch,
    turn_secs: float,
    n_tasks: int,
) -> None:
    """Its final has a twentieth of the budget, and one heat at least."""
    prepared = workshop.prepare()
    machine.trial_secs = 50.0
    with monkeypatch.context() as patch:
        patch.setattr(finals, "find_races", lambda *_: [])
        workshop.tune(prepared, 24, trials_per_round=4)
    spent = workshop.job().spent_secs
    machine.turn_secs = turn_secs

    snapshot = workshop.tune(prepared, 400, seconds=spent)

    assert len(workshop.trials()) == 24
    first_tasks = list(shares_of(snapshot))[:n_tasks]
    assert machine.order == first_tasks
    assert confirmed_tasks(workshop) == set(first_tasks)


def test_heats_are_spent_before_they_end(
    workshop: Workshop, machine: SlowMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed in its final has used up the time of the heats before."""
    machine.turn_secs = 1.0
    stored: list[float] = []
    run_heat = finals.Race.run_heat

    async def watched_heat(race: finals.Race, *arguments: Any) -> None:
        stored.append(workshop.job().spent_secs - machine.late_secs)
        await run_heat(race, *arguments)

    monkeypatch.setattr(finals.Race, "run_heat", watched_heat)

    workshop.tune(workshop.prepare(), 40)

    assert len(stored) > 4
    assert min(stored) >= 0.0


def test_trials_alone_limit_no_final(workshop: Workshop, machine: SlowMachine) -> None:
    """Its heats all run, however long they take."""
    machine.build_secs, machine.turn_secs = 1e4, 1e3

    workshop.tune(workshop.prepare(), 64)

    assert Counter(n_turns for *_, n_turns in machine.heats) == {2: 4, 3: 4, 4: 4}


def test_races_are_built_side_by_side(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are builders, before any is timed."""
    events = []
    build, time = InterleavedTiming.build, InterleavedTiming.time

    async def watched_build(timing: InterleavedTiming) -> None:
        events.append("begin")
        await build(timing)
        events.append("end")

    async def watched_time(
        timing: InterleavedTiming, indices: Sequence[int], device: Device, **options: Any
    ) -> list[RunResult]:
        events.append("time")
        return await time(timing, indices, device, **options)

    monkeypatch.setattr(InterleavedTiming, "build", watched_build)
    monkeypatch.setattr(InterleavedTiming, "time", watched_time)

    workshop.tune(workshop.prepare(), 24, trials_per_round=4)

    assert events[:3] == ["begin", "begin", "end"]
    assert sorted(events[:8]) == ["begin"] * 4 + ["end"] * 4
    assert set(events[8:]) == {"time"}


def hang(*_arguments: Any, **_options: Any) -> asyncio.Future[Any]:
    """Begin work that never ends."""
    return asyncio.get_running_loop().create_future()


def test_a_round_ends_with_the_seconds_of_its_job(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays open, and the final has the rest."""
    prepared = workshop.prepare()
    workshop.tune(prepared, 8)
    spent = workshop.job().spent_secs
    monkeypatch.setattr(round_runner, "search", hang)

    workshop.tune(prepared, 400, seconds=spent + 2.0, trials_per_round=4)

    assert workshop.job().state == "done"
    *_, (_, _, n_trials, is_complete) = picks_of(workshop.sessions)
    assert (n_trials, is_complete) == (4, False)
    assert len(workshop.trials()) == 8


@pytest.mark.parametrize("part", ["build", "time"])
def test_a_final_ends_with_the_seconds_of_its_job(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Races without a result confirm nothing, and the best records stay."""
    prepared = workshop.prepare()
    monkeypatch.setattr(finals, "find_races", lambda *_: [])
    workshop.tune(prepared, 40)
    monkeypatch.undo()
    monkeypatch.setattr(InterleavedTiming, part, hang)
    before = bests_of(workshop.sessions)

    workshop.tune(prepared, 400, seconds=workshop.job().spent_secs)

    assert workshop.job().state == "done"
    assert bests_of(workshop.sessions) == before


def start_before(workshop: Workshop, secs: float) -> TuningSession:
    """Open a job of 50 s whose command began some seconds ago."""
    options = SessionOptions(
        TuneSpec(seconds=50.0, trials=4, trials_per_round=2),
        started=workshop.context.now() - secs,
    )
    return TuningSession(workshop.context, workshop.prepare(), options, lambda _: None)


def test_the_seconds_of_a_command_count_from_its_start(workshop: Workshop) -> None:
    """The seconds that the preparation leaves are spent on trials."""
    session = start_before(workshop, 20.0)

    workshop.run_alone(session)

    assert 20.0 < workshop.job(session.job_id).spent_secs < 50.0
    assert len(workshop.trials()) == 4


def test_seconds_without_a_trial_are_not_counted(workshop: Workshop) -> None:
    """A command whose preparation took all of them says so, and the next one has them again."""
    session = start_before(workshop, 50.0)

    with pytest.raises(WorkError, match="the 50 s of the budget ended before the first trial"):
        workshop.run_alone(session)

    job = workshop.job(session.job_id)
    assert (job.state, workshop.trials()) == ("paused", [])
    assert job.spent_secs == 0.0
    workshop.run_alone(start_before(workshop, 0.0))
    assert len(workshop.trials()) == 4


def test_the_time_of_a_round_follows_from_the_budget(workshop: Workshop) -> None:
    """It leaves a part for a final if there is something to confirm."""
    final_time = FinalTime(workshop.sessions)
    prepared = workshop.prepare()
    nothing = workshop.session(prepared, 4).snapshot()
    measured = workshop.tune(prepared, 4)

    assert final_time.round_secs_left(Budget(trials=4), 9.0, measured) == inf
    assert final_time.round_secs_left(Budget(secs=100.0), 10.0, nothing) == pytest.approx(90.0)
    assert final_time.round_secs_left(Budget(secs=100.0), 10.0, measured) == pytest.approx(75.0)

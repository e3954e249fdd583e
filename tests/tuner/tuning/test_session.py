"""The tuning loop, with an engine that answers at once."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from sqlalchemy import orm, select

from records import database, events, picks
from records.models import BestRecord, Job, MeasureRecord, Pick
from scheduler.budget import Budget
from tests.cli import Cli, finish
from tests.engines import toy
from tests.engines.toy_network import (
    Workshop,
    bests_of,
    open_sessions,
    picks_of,
    trials_of,
)
from tuner.engines.base import Candidate
from tuner.errors import WorkError
from tuner.executors.local import LocalExecutor
from tuner.tuning.round_runner import _ResultRecorder
from tuner.tuning.session import TuningSession

if TYPE_CHECKING:
    import subprocess

    from tuner.tuning.status import TuningStatus

TRIALS = "64"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands that use the toy engine."""
    return Cli(tmp_path, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "2"})


def tune(trials: str = TRIALS, model: str = "zoo:mlp", seed: str = "0") -> tuple[str, ...]:
    """The arguments of a quick ``tuner tune``."""
    return ("tune", model, "--trials", trials, "--trials-per-round", "8", "--seed", seed)


@pytest.mark.parametrize("trials", [1, 7, 50])
def test_budget_is_spent_exactly(workshop: Workshop, trials: int) -> None:
    """As many records as the budget has trials, whatever the size of a round."""
    overview = workshop.tune(workshop.prepare(), trials, trials_per_round=8)

    assert len(workshop.trials()) == trials == overview.n_trials
    assert workshop.job().state == "done"


def test_every_trial_has_its_own_trace(workshop: Workshop) -> None:
    """No program of a task is measured twice."""
    workshop.tune(workshop.prepare(), 120)

    counted = Counter((trial.task_id, trial.trace_hash) for trial in workshop.trials())
    assert set(counted.values()) == {1}


def test_same_job_again_measures_nothing(workshop: Workshop) -> None:
    """A budget that is spent stays spent."""
    prepared = workshop.prepare()
    first = workshop.tune(prepared, 40)
    before = workshop.trials()

    again = workshop.tune(prepared, 40)

    assert workshop.trials() == before
    assert again.total_secs == first.total_secs


def test_smaller_budget_measures_nothing(workshop: Workshop) -> None:
    """What was spent counts against a smaller budget too."""
    prepared = workshop.prepare()
    workshop.tune(prepared, 40)

    workshop.tune(prepared, 10)

    assert len(workshop.trials()) == 40


def test_raised_budget_goes_on(workshop: Workshop) -> None:
    """A larger budget buys the difference and never makes the network slower."""
    prepared = workshop.prepare()
    first = workshop.tune(prepared, 32, trials_per_round=8)

    second = workshop.tune(prepared, 72, trials_per_round=8)

    assert len(workshop.trials()) == 72
    assert second.total_secs <= first.total_secs


def test_seconds_stop_a_job(workshop: Workshop) -> None:
    """A limit in seconds ends a job without any limit in trials, and is remembered."""
    workshop.tune(workshop.prepare(), seconds=1e-6)

    assert workshop.trials() == []
    assert workshop.job().spent_secs > 0


def test_seconds_beside_trials_stop_at_whichever_comes_first(workshop: Workshop) -> None:
    """Trials that run out first end the job, hours before its seconds do."""
    workshop.tune(workshop.prepare(), 9, seconds=3600.0)

    assert len(workshop.trials()) == 9


def test_seconds_of_earlier_runs_count(workshop: Workshop) -> None:
    """A job that spent its seconds buys nothing more until it gets more of them."""
    prepared = workshop.prepare()
    workshop.tune(prepared, 4, trials_per_round=4)
    spent = workshop.job().spent_secs

    workshop.tune(prepared, 400, seconds=spent / 2)

    assert len(workshop.trials()) == 4


def test_records_are_committed_one_by_one(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connection sees the records of a round while the round still runs."""
    seen = []
    on_result: Callable[..., None] = _ResultRecorder.on_result

    def spy(*args: object) -> None:
        on_result(*args)
        url = f"sqlite:///{workshop.folder / 'tuner.db'}"
        seen.append(len(trials_of(open_sessions(url))))

    monkeypatch.setattr(_ResultRecorder, "on_result", spy)
    workshop.tune(workshop.prepare(), 16, trials_per_round=8)

    assert seen == list(range(1, 17))


def test_total_is_the_weighted_sum_of_best_records(workshop: Workshop) -> None:
    """The estimate of a network is what its best records say."""
    overview = workshop.tune(workshop.prepare(), 60)

    with workshop.sessions() as session:
        best = {row.task_id: row.latency for row in session.scalars(select(BestRecord))}
    weights = {row.task_id: row.weight for row in overview.rows}
    assert overview.total_secs == pytest.approx(
        sum(weights[task_id] * latency for task_id, latency in best.items())
    )
    assert sum(row.share for row in overview.rows) == pytest.approx(1.0)


def test_failed_trials_count_and_never_win(workshop: Workshop) -> None:
    """A trial that failed is spent, has its error, and is no best record."""
    workshop.tune(workshop.prepare(), 120)

    with workshop.sessions() as session:
        failed = list(session.scalars(select(MeasureRecord).where(MeasureRecord.error_kind != "")))
        best = set(session.scalars(select(BestRecord.record_id)))
    assert failed
    assert {record.error_kind for record in failed} == {"run_error"}
    assert {record.error_text for record in failed} == {"the toy broke"}
    assert best.isdisjoint(record.id for record in failed)


def test_exhausted_task_leaves(workshop: Workshop) -> None:
    """A task whose programs are all measured gets no more trials, the others their share."""
    found = [
        toy.make_task("small", weight=9, base_secs=1e-2, n_programs=3),
        toy.make_task("large", weight=1, base_secs=1e-4),
    ]

    overview = workshop.tune(workshop.prepare("pair", extracted=found), 40, trials_per_round=8)

    small, large = overview.rows
    assert (small.n_trials, small.exhausted) == (3, True)
    assert large.n_trials >= 20
    assert workshop.job().state == "done"


def test_job_ends_when_every_task_is_exhausted(workshop: Workshop) -> None:
    """A budget larger than all spaces together leaves a finished job."""
    found = [toy.make_task(name, weight=1, base_secs=1e-3, n_programs=4) for name in ("a", "b")]

    overview = workshop.tune(workshop.prepare("pair", extracted=found), 100)

    assert overview.n_trials == 8
    assert all(row.exhausted for row in overview.rows)
    assert workshop.job().state == "done"


def test_network_whose_tasks_got_their_share_measures_nothing(workshop: Workshop) -> None:
    """A network is credited with the trials of another up to an even share of each task."""
    first = workshop.tune(workshop.prepare("first"), 120)
    alive = [row.n_trials for row in first.rows if not row.exhausted]

    overview = workshop.tune(workshop.prepare("second"), toy.N_TASKS * min(alive))

    assert len(workshop.trials()) == 120
    assert overview.n_trials == 120
    assert workshop.job(2).state == "done"


def test_network_of_the_same_tasks_and_budget_measures_nothing(workshop: Workshop) -> None:
    """A network whose tasks are exactly those of one tuned to its budget needs no trial."""
    workshop.tune(workshop.prepare("first"), 60)

    workshop.tune(workshop.prepare("second"), 60)

    assert len(workshop.trials()) == 60


def test_tasks_that_a_larger_network_starved_are_tuned(workshop: Workshop) -> None:
    """A job spends where that helps its own network; a part of it still gets its budget."""
    tiny = [toy.make_task(f"tiny_{i}", weight=1, base_secs=1e-6) for i in range(3)]
    huge = [toy.make_task(f"huge_{i}", weight=9, base_secs=1e-2) for i in range(3)]
    workshop.tune(workshop.prepare("large", extracted=[*tiny, *huge]), 120, trials_per_round=4)

    workshop.tune(workshop.prepare("small", extracted=tiny), 60, trials_per_round=4)

    assert len(workshop.trials()) > 130


def test_larger_budget_pays_for_the_difference(workshop: Workshop) -> None:
    """What a job ended with does not count for a deeper one, its trials do."""
    workshop.tune(workshop.prepare("first"), 60)

    workshop.tune(workshop.prepare("second"), 100)

    assert 60 < len(workshop.trials()) <= 160


def test_network_that_shares_tasks_pays_for_the_rest(workshop: Workshop) -> None:
    """Shared tasks are credited, so that fewer trials are spent than the budget has."""
    workshop.tune(workshop.prepare("first", batch=1), 80)

    overview = workshop.tune(workshop.prepare("second", batch=2), 80)

    rows = {row.name: row for row in overview.rows}
    assert rows["batch_2[1]"].n_trials > 0
    assert 80 < len(workshop.trials()) < 160


def test_winners_are_confirmed(workshop: Workshop) -> None:
    """At the end the best record of every task that matters was measured again."""
    workshop.tune(workshop.prepare(), 80)

    with workshop.sessions() as session:
        best = list(session.scalars(select(BestRecord)))
    assert len(best) == toy.N_TASKS
    assert all(row.confirmed for row in best)


def test_tasks_that_the_budget_did_not_reach_are_no_failure(workshop: Workshop) -> None:
    """One trial for four tasks leaves an unknown total and a finished job."""
    overview = workshop.tune(workshop.prepare(), 1)

    assert overview.total_secs == float("inf")
    assert workshop.job().state == "done"


def test_nothing_measurable_is_a_failure_that_says_why(workshop: Workshop) -> None:
    """A job none of whose candidates ran names the last error."""
    broken = toy.make_task("broken", weight=1, base_secs=1e-3, n_programs=400)
    prepared = workshop.prepare("broken", extracted=[broken])
    session = workshop.session(prepared, 1)
    traces = _failing_traces("broken")

    async def propose(*_: object) -> list[Candidate]:
        return [_candidate(traces[0])]

    session._round_runner._propose = propose  # type: ignore[method-assign,assignment]

    with pytest.raises(WorkError, match=r"run_error.*the toy broke"):
        workshop.run_alone(session)
    assert len(workshop.trials()) == 1


def test_watcher_is_told_when_to_be_quiet(workshop: Workshop) -> None:
    """Every phase that measures asks for quiet, no other does."""
    told: list[TuningStatus] = []

    workshop.tune(workshop.prepare(), 24, watcher=told.append)

    assert {status.phase for status in told if not status.is_measuring_cpu} == {
        "choosing",
        "searching",
    }
    assert any(status.is_measuring_cpu for status in told)
    assert told[-1].spent_trials == 24


def test_picks_hold_their_reasons(workshop: Workshop) -> None:
    """Every pick says why it was made and which records its cost model may know."""
    workshop.tune(workshop.prepare(), 64, trials_per_round=8)

    with workshop.sessions() as session:
        terms = [pick.terms for pick in session.scalars(select(Pick).order_by(Pick.sequence))]
    assert {"warm_up"} < {term["reason"] for term in terms}
    assert [term["newest_record"] for term in terms] == sorted(t["newest_record"] for t in terms)


@pytest.mark.parametrize("cost_model", ["random", "xgb-ranking"])
def test_two_runs_are_the_same(workers: LocalExecutor, tmp_path: Path, cost_model: str) -> None:
    """The same job in two databases makes the same picks and measures the same programs."""
    found = []
    for name in ("one", "two"):
        engine = database.open_database(f"sqlite:///{tmp_path / name}.db")
        shop = Workshop(database.sessions(engine), tmp_path / name, workers)
        shop.tune(shop.prepare(), 64, trials_per_round=8, cost_model=cost_model)
        found.append((shop.trials(), picks_of(shop.sessions)))
        engine.dispose()

    assert found[0] == found[1]


@pytest.mark.parametrize("cost_model", ["random", "xgb-ranking"])
def test_interrupted_anywhere_goes_on_as_if_it_had_not_been(
    workers: LocalExecutor, tmp_path: Path, cost_model: str
) -> None:
    """A session that is broken off at every step leaves the records of an undisturbed one."""
    undisturbed = _shop(workers, tmp_path / "undisturbed")
    options: dict[str, Any] = {"trials_per_round": 8, "cost_model": cost_model}
    undisturbed.tune(undisturbed.prepare(), 64, **options)
    disturbed = _shop(workers, tmp_path / "disturbed")
    rng = random.Random(4)
    n_breaks = 0
    while not _done(disturbed):
        n_breaks += 1
        session = disturbed.session(disturbed.prepare(), 64, **options)
        _break_after(session, rng.randrange(1, 24))
        with pytest.raises(_Broken):
            disturbed.run_alone(session)
        assert disturbed.job().state == "paused"
        if len(disturbed.trials()) >= 60:
            disturbed.tune(disturbed.prepare(), 64, **options)

    assert n_breaks > 3
    assert disturbed.trials() == undisturbed.trials()
    assert picks_of(disturbed.sessions) == picks_of(undisturbed.sessions)


def test_open_round_of_a_task_that_is_gone_is_given_up(workshop: Workshop) -> None:
    """After an upgrade that splits the network anew the job goes on with the tasks it has."""
    prepared = workshop.prepare()
    other = workshop.prepare("other", extracted=[toy.make_task("gone", weight=1, base_secs=1.0)])
    session = workshop.session(prepared, 16, trials_per_round=8)
    with workshop.sessions.begin() as opened:
        terms = {"newest_record": 0}
        picks.add_picks(opened, [picks.NewPick(session.job_id, other.tasks[0].task_id, 8, terms)])

    workshop.run_alone(session)

    assert len(workshop.trials()) == 16
    assert workshop.job().state == "done"
    with workshop.sessions() as opened:
        pick = opened.get_one(Pick, 1)
    assert (pick.done, pick.terms["failed"]) == (True, "its task is not of this network any more")


def test_round_ends_with_what_it_came_to_or_not_at_all(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies between the two finds the round open, and tells of it once."""
    prepared = workshop.prepare()
    add_events = events.add_events

    def dying(session: orm.Session, new: list[events.NewEvent]) -> list[int]:
        if new[0].kind == "round":
            raise _Broken
        return add_events(session, new)

    monkeypatch.setattr(events, "add_events", dying)
    with pytest.raises(_Broken):
        workshop.run_alone(workshop.session(prepared, 8, trials_per_round=8))
    with workshop.sessions() as session:
        assert picks.open_picks(session, 1)
    monkeypatch.setattr(events, "add_events", add_events)
    workshop.tune(prepared, 8, trials_per_round=8)

    assert [data["n_measured"] for data in _rounds_told(workshop)] == [8]


def test_round_whose_search_failed_is_told(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches the job sees that it ended, with nothing measured."""
    session = workshop.session(workshop.prepare(), 8, trials_per_round=8)
    propose: Callable[..., Awaitable[list[Candidate]]] = session._round_runner._propose
    failures = [WorkError("out of luck")]

    async def failing(*args: object) -> list[Candidate]:
        if failures:
            raise failures.pop()
        return await propose(*args)

    monkeypatch.setattr(session._round_runner, "_propose", failing)
    workshop.run_alone(session)

    assert [data["n_measured"] for data in _rounds_told(workshop)] == [0, 8]


@pytest.mark.parametrize(
    ("n_kills", "trials", "allocator"),
    [
        (3, TRIALS, "gradient"),
        pytest.param(50, "640", "gradient", marks=pytest.mark.slow("minutes: 50 kills")),
        pytest.param(50, "640", "forecast", marks=pytest.mark.slow("minutes: 50 kills")),
    ],
)
def test_killed_command_goes_on_as_if_it_had_not_been(
    tmp_path: Path, n_kills: int, trials: str, allocator: str
) -> None:
    """Many kill -9 at random moments change neither the picks nor the records."""
    settings = {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "2", "TOY_RUN_SECS": "0.02"}
    calm, rough = (Cli(tmp_path / name, settings) for name in ("calm", "rough"))
    for each in (calm, rough):
        each.folder.mkdir()
    command = (*tune(trials), "--allocator", allocator)
    assert calm(*command, TOY_RUN_SECS="0").status == 0
    rng = random.Random(2)
    n_killed = 0
    while n_killed < n_kills:
        process = rough.start(*command)
        before = rough.count_records()
        # Up to a round of new records, and then any moment of the next few.
        _wait(lambda: process.poll() is not None or rough.count_records() > before)  # noqa: B023
        time.sleep(rng.random() * 0.15)
        workers = _descendants(process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        n_killed += 1
        _wait(lambda: not any(worker.is_running() for worker in workers))  # noqa: B023
        if rough.count_records() >= int(trials):
            break
    n_before_last = rough.count_records()
    answer = rough(*command, "--json")

    assert n_killed == n_kills
    assert answer.json["measured_now"] == int(trials) - n_before_last
    assert trials_of(open_sessions(rough.url)) == trials_of(open_sessions(calm.url))
    assert picks_of(open_sessions(rough.url)) == picks_of(open_sessions(calm.url))
    assert bests_of(open_sessions(rough.url)) == bests_of(open_sessions(calm.url))


@pytest.mark.parametrize(
    ("number", "status", "name", "whole_group"),
    [
        # A terminal signals every process, a service manager the first.
        (signal.SIGINT, 130, "Ctrl-C", True),
        (signal.SIGTERM, 143, "SIGTERM", True),
        (signal.SIGTERM, 143, "SIGTERM", False),
    ],
)
def test_signal_stops_cleanly(
    cli: Cli, number: signal.Signals, status: int, name: str, whole_group: bool
) -> None:
    """A stopped command says how to go on, leaves a paused job and no process behind."""
    process = cli.start(*tune("4000"), TOY_RUN_SECS="0.02")
    _wait(lambda: cli.count_records() > 3)
    workers = _descendants(process)
    _send(process, number, whole_group=whole_group)
    answer = finish(process, 60)

    assert answer.status == status
    assert answer.complaint.startswith(f"tuner: stopped by {name}; finished work is kept")
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert len(workers) >= 3
    _wait(lambda: not any(worker.is_running() for worker in workers))
    with open_sessions(cli.url)() as session:
        assert session.get_one(Job, 1).state == "paused"
    n_before = cli.count_records()
    again = cli(*tune(str(n_before + 8)), "--json")
    assert again.status == 0
    assert again.json["measured_now"] == 8


def test_impatient_second_signal_changes_nothing(cli: Cli) -> None:
    """Pressing Ctrl-C three times is as good as once."""
    process = cli.start(*tune("4000"), TOY_RUN_SECS="0.02")
    _wait(lambda: cli.count_records() > 3)
    for _ in range(3):
        _send(process, signal.SIGINT, whole_group=True)
    answer = finish(process, 60)

    assert answer.status == 130
    assert "Traceback" not in answer.err


def test_signal_before_the_first_trial_stops_cleanly(cli: Cli) -> None:
    """A command that is stopped while it still loads its model says so in one line."""
    process = cli.start(*tune("4000"))
    _wait(lambda: len(_descendants(process)) >= 3)
    workers = _descendants(process)
    _send(process, signal.SIGINT, whole_group=False)
    answer = finish(process, 60)

    assert answer.status == 130
    assert "Traceback" not in answer.err
    _wait(lambda: not any(worker.is_running() for worker in workers))


def test_two_commands_share_a_database(cli: Cli) -> None:
    """Two networks tuned at once from two data directories count no trial twice."""
    cli.data_dir.mkdir()
    commands = [
        cli.start(
            *tune("40", f"zoo:mlp?batch={batch}"),
            *("--database", cli.url, "--data-dir", str(cli.folder / f"data{batch}"), "--json"),
        )
        for batch in (1, 2)
    ]
    answers = [finish(command) for command in commands]

    assert [answer.status for answer in answers] == [0, 0], answers
    counted = Counter((t.task_id, t.trace_hash) for t in trials_of(open_sessions(cli.url)))
    assert set(counted.values()) == {1}


def test_second_command_does_not_measure_beside_the_first(cli: Cli) -> None:
    """Two commands on one data directory would slow each other's candidates: one is refused."""
    first = cli.start(*tune("4000"), TOY_RUN_SECS="0.02")
    _wait(lambda: cli.count_records() > 3)

    second = cli(*tune("40", "zoo:mlp?batch=2"), "--json")
    _send(first, signal.SIGINT, whole_group=False)
    finish(first, 60)

    assert second.status == 1
    assert second.err.startswith(f"tuner: process {first.pid} is measuring on this machine")
    assert len(second.err.splitlines()) == 1
    assert second.out == ""


def test_command_goes_on_after_workers_were_killed(cli: Cli) -> None:
    """Every worker of a running job is killed once; the job spends its whole budget."""
    process = cli.start(*tune("96"), "--json", TOY_RUN_SECS="0.02")
    for threshold in (4, 20, 40):
        _wait(lambda: process.poll() is not None or cli.count_records() > threshold)  # noqa: B023
        for worker in cli.workers_of(process):
            worker.kill()
    answer = finish(process, 120)

    assert answer.status == 0, answer.err
    assert cli.count_records() == 96


class _Broken(BaseException):
    """Stands for whatever ends a process."""


def _break_after(session: TuningSession, n_steps: int) -> None:
    """Let the n-th step of a session, of those that touch the database, raise."""
    left = [n_steps]

    def breaking(step: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **named: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise _Broken
            return step(*args, **named)

        return run

    for holder, name in (
        (session, "on_result"),
        (session._round_runner, "_propose"),
        (session._chooser, "choose"),
        (session, "_publish_if_due"),
    ):
        setattr(holder, name, breaking(getattr(holder, name)))


def _rounds_told(shop: Workshop) -> list[dict[str, Any]]:
    with shop.sessions() as session:
        told = events.events_after(session, 1, 0)
    return [event.data for event in told if event.kind == "round"]


def _shop(workers: LocalExecutor, folder: Path) -> Workshop:
    folder.mkdir()
    return Workshop(open_sessions(f"sqlite:///{folder / 'tuner.db'}"), folder, workers)


def _done(shop: Workshop) -> bool:
    with shop.sessions() as session:
        job = session.get(Job, 1)
        return job is not None and job.state == "done"


def _failing_traces(task: str) -> list[str]:
    traces = [f'{{"task": "{task}", "program": {index}}}' for index in range(200)]
    return [trace for trace in traces if toy._share(trace) > 0.9]


def _candidate(trace: str) -> Candidate:
    import numpy as np

    from tuner.cost_models import features

    return Candidate(trace, trace, features.pack(np.ones((1, 8), dtype=np.float32)), 1.0)


def _descendants(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _send(process: "subprocess.Popen[str]", number: int, *, whole_group: bool) -> None:
    if whole_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


def _wait(condition: Callable[[], bool], limit_secs: float = 60.0) -> None:
    """Poll until something is so; a minute is a hang."""
    event = threading.Event()
    deadline = time.monotonic() + limit_secs
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        event.wait(0.01)


def test_a_round_that_others_left_nothing_for_exhausts_no_task(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found and not measured, for others spent the budget meanwhile, is there to find."""
    job = workshop.session(workshop.prepare(), 40, trials_per_round=8)
    propose = job._round_runner._propose

    async def slow(*args: Any) -> list[Candidate]:
        found = await propose(*args)
        if len(workshop.trials()) == 8:
            monkeypatch.setattr(job, "_budget", Budget(8))
        return found

    monkeypatch.setattr(job._round_runner, "_propose", slow)
    overview = workshop.run_alone(job)

    assert [row.n_trials for row in overview.rows if row.n_trials] == [8]
    assert not any(row.exhausted for row in overview.rows)

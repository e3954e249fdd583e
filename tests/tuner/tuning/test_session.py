"""Sessions of one job, from their picks to their winners, with the toy engine."""

import json
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import orm, select

from records import database, picks, tasks
from records.models import BestRecord, Job, MeasureRecord, Pick
from records.tuning import events
from scheduler.budget import Budget
from tests.engines import toy
from tests.engines.toy_network import (
    Workshop,
    open_sessions,
    picks_of,
    trials_of,
)
from tuner.engines.base import Candidate, RunResult
from tuner.errors import OutOfTime, WorkError
from tuner.executors.local import LocalExecutor
from tuner.tuning.rounds.round_runner import _ResultRecorder
from tuner.tuning.session import TuningSession
from tuner.tuning.tasks.snapshot import JobSnapshot

if TYPE_CHECKING:
    from tuner.tuning.status import TuningStatus


@pytest.mark.parametrize("trials", [7, 24])
def test_budget_is_spent_exactly(workshop: Workshop, trials: int) -> None:
    """A job makes as many records as its budget has trials, whatever the size of a round."""
    snapshot = workshop.tune(workshop.prepare(), trials, trials_per_round=8)

    assert len(workshop.trials()) == trials == snapshot.n_trials
    assert workshop.job().state == "done"


@pytest.fixture(scope="module")
def tuned(
    workers: LocalExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Workshop, JobSnapshot]]:
    """A job that is done, and its table."""
    shop = _shop(workers, tmp_path_factory.mktemp("tuned") / "shop")
    yield shop, shop.tune(shop.prepare(), 80)
    shop.sessions.kw["bind"].dispose()


def test_every_trial_has_its_own_trace(tuned: tuple[Workshop, JobSnapshot]) -> None:
    """No program of a task is measured twice."""
    counted = Counter((trial.task_id, trial.trace_hash) for trial in tuned[0].trials())

    assert set(counted.values()) == {1}


def test_records_and_tables_keep_the_origin_of_candidates(
    tuned: tuple[Workshop, JobSnapshot],
) -> None:
    """A record says which source proposed it, and a task which proposed its best record."""
    workshop, snapshot = tuned
    with workshop.sessions() as session:
        records = list(session.scalars(select(MeasureRecord)))
        best = {each.task_id: each.record_id for each in session.scalars(select(BestRecord))}
    origins = {record.id: record.origin for record in records}
    assert {*origins.values()} == {"evolution", "random"}
    for row in snapshot.rows:
        assert row.origin == origins[best[row.task_id]]


def test_total_is_the_weighted_sum_of_best_records(tuned: tuple[Workshop, JobSnapshot]) -> None:
    """The latency of a network is estimated from its best records."""
    workshop, snapshot = tuned
    with workshop.sessions() as session:
        best = {row.task_id: row.latency for row in session.scalars(select(BestRecord))}
    weights = {row.task_id: row.weight for row in snapshot.rows}
    assert snapshot.total_latency_secs == pytest.approx(
        sum(weights[task_id] * latency for task_id, latency in best.items())
    )
    assert sum(row.share for row in snapshot.rows) == pytest.approx(1.0)


def test_failed_trials_count_and_never_win(tuned: tuple[Workshop, JobSnapshot]) -> None:
    """A failed trial is spent, stores its error, and is never a best record."""
    with tuned[0].sessions() as session:
        failed = list(session.scalars(select(MeasureRecord).where(MeasureRecord.error_kind != "")))
        best = set(session.scalars(select(BestRecord.record_id)))
    assert failed
    assert {record.error_kind for record in failed} == {"run_error"}
    assert {record.error_text for record in failed} == {"the toy broke"}
    assert best.isdisjoint(record.id for record in failed)


def test_winners_are_confirmed(tuned: tuple[Workshop, JobSnapshot]) -> None:
    """At the end of a job the best record of every task was measured again."""
    with tuned[0].sessions() as session:
        best = list(session.scalars(select(BestRecord)))
    assert len(best) == toy.N_TASKS
    assert all(row.confirmed for row in best)


def test_same_job_again_measures_nothing(workshop: Workshop) -> None:
    """A job whose budget is spent makes no further trials."""
    prepared = workshop.prepare()
    first = workshop.tune(prepared, 16, trials_per_round=4)
    before = workshop.trials()

    again = workshop.tune(prepared, 16, trials_per_round=4)

    assert workshop.trials() == before
    assert again.total_latency_secs == first.total_latency_secs


def test_smaller_budget_measures_nothing(workshop: Workshop) -> None:
    """Trials that were spent count against a smaller budget as well."""
    prepared = workshop.prepare()
    workshop.tune(prepared, 16)

    workshop.tune(prepared, 10)

    assert len(workshop.trials()) == 16


def test_raised_budget_buys_the_difference(workshop: Workshop) -> None:
    """A larger budget is spent to its end, and never makes the network slower."""
    prepared = workshop.prepare()
    first = workshop.tune(prepared, 16, trials_per_round=4)

    second = workshop.tune(prepared, 32, trials_per_round=4)

    assert len(workshop.trials()) == 32
    assert second.total_latency_secs <= first.total_latency_secs


def test_seconds_stop_a_job(workshop: Workshop) -> None:
    """A limit in seconds ends a job that has no limit in trials; without a trial it is paused."""
    with pytest.raises(OutOfTime, match="ended before the first trial"):
        workshop.tune(workshop.prepare(), seconds=1e-6)

    assert workshop.trials() == []
    assert workshop.job().state == "paused"
    assert workshop.job().spent_secs == 0.0


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


def test_drift_of_the_clock_is_divided_out(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples stay as they were taken on a device that has become slower; latencies do not."""
    on_result: Callable[..., None] = _ResultRecorder.on_result

    def slow_down(recorder: _ResultRecorder, candidate: Candidate, result: RunResult) -> None:
        slowness = 1.0 if recorder.pick.sequence == 1 else 2.0
        run_secs = result.run_secs and tuple(slowness * secs for secs in result.run_secs)
        drifted = replace(result, run_secs=run_secs, clock_secs=5e-3 * slowness)
        on_result(recorder, candidate, drifted)

    monkeypatch.setattr(_ResultRecorder, "on_result", slow_down)
    workshop.tune(workshop.prepare(), 24, trials_per_round=8)

    with workshop.sessions() as session:
        timed = session.scalars(select(MeasureRecord).where(MeasureRecord.run_secs.is_not(None)))
        records = list(timed)
    assert {record.clock_factor for record in records} == {1.0, 0.5}
    for record in records:
        program = toy.run_secs_of(record.trace, _base_secs(workshop, record))
        assert record.latency == pytest.approx(program)


def _base_secs(workshop: Workshop, record: MeasureRecord) -> float:
    """Return the shortest latency of any program of a record's task."""
    with workshop.sessions() as session:
        return float(json.loads(tasks.workload_ir(session, record.task_id))["base_secs"])


def test_an_exhausted_task_leaves_its_trials_to_others(workshop: Workshop) -> None:
    """A task whose programs are all measured gets no more trials, and the others get its share."""
    extracted = [
        toy.make_task("small", weight=9, base_secs=1e-2, n_programs=3),
        toy.make_task("large", weight=1, base_secs=1e-4),
    ]

    snapshot = workshop.tune(workshop.prepare("pair", extracted=extracted), 40, trials_per_round=8)

    small, large = snapshot.rows
    assert (small.n_trials, small.exhausted) == (3, True)
    assert large.n_trials >= 20
    assert workshop.job().state == "done"


def test_job_ends_when_every_task_is_exhausted(workshop: Workshop) -> None:
    """A job whose budget is larger than all search spaces together is done."""
    extracted = [toy.make_task(name, weight=1, base_secs=1e-3, n_programs=4) for name in ("a", "b")]

    snapshot = workshop.tune(workshop.prepare("pair", extracted=extracted), 100)

    assert snapshot.n_trials == 8
    assert all(row.exhausted for row in snapshot.rows)
    assert workshop.job().state == "done"


def test_network_whose_tasks_got_their_share_measures_nothing(workshop: Workshop) -> None:
    """A network is credited with the trials of another up to an even share of each task."""
    first = workshop.tune(workshop.prepare("first"), 48, trials_per_round=4)
    alive = [row.n_trials for row in first.rows if not row.exhausted]

    snapshot = workshop.tune(workshop.prepare("second"), toy.N_TASKS * min(alive))

    assert len(workshop.trials()) == 48
    assert snapshot.n_trials == 48
    assert workshop.job(2).state == "done"


def test_network_of_the_same_tasks_and_budget_measures_nothing(workshop: Workshop) -> None:
    """A network needs no trials if another with exactly its tasks spent the same budget."""
    workshop.tune(workshop.prepare("first"), 24)

    workshop.tune(workshop.prepare("second"), 24)

    assert len(workshop.trials()) == 24


def test_tasks_that_a_larger_network_starved_are_tuned(workshop: Workshop) -> None:
    """A network whose tasks a larger one neglected still spends its budget."""
    tiny = [toy.make_task(f"tiny_{i}", weight=1, base_secs=1e-6) for i in range(3)]
    huge = [toy.make_task(f"huge_{i}", weight=9, base_secs=1e-2) for i in range(3)]
    workshop.tune(workshop.prepare("large", extracted=[*tiny, *huge]), 60, trials_per_round=4)

    workshop.tune(workshop.prepare("small", extracted=tiny), 30, trials_per_round=4)

    assert len(workshop.trials()) > 65


def test_larger_budget_pays_for_the_difference(workshop: Workshop) -> None:
    """A job with a larger budget is credited with the trials of an equivalent one, and no more."""
    workshop.tune(workshop.prepare("first"), 24, trials_per_round=4)

    workshop.tune(workshop.prepare("second"), 40, trials_per_round=4)

    assert 24 < len(workshop.trials()) <= 64


def test_a_job_that_ended_after_one_task_pays_for_no_other_task(workshop: Workshop) -> None:
    """An equal job with a smaller budget tunes the tasks that a cancelled one never reached."""
    cancelled = workshop.session(workshop.prepare(), 4000, trials_per_round=48, seed=1)
    cancelled.start()
    workshop.run_round(cancelled)
    assert len({trial.task_id for trial in workshop.trials()}) == 1

    snapshot = workshop.tune(workshop.prepare(), 40)

    assert all(row.n_trials > 0 for row in snapshot.rows)
    assert all(math.isfinite(row.latency) for row in snapshot.rows)


def test_network_that_shares_tasks_pays_for_the_rest(workshop: Workshop) -> None:
    """Trials on shared tasks are credited, so that fewer are spent than the budget allows."""
    workshop.tune(workshop.prepare("first", batch=1), 32, trials_per_round=4)

    snapshot = workshop.tune(workshop.prepare("second", batch=2), 32, trials_per_round=4)

    rows = {row.name: row for row in snapshot.rows}
    assert rows["batch_2[1]"].n_trials > 0
    assert 32 < len(workshop.trials()) < 64


def test_tasks_that_the_budget_did_not_reach_are_not_failures(workshop: Workshop) -> None:
    """A job of one trial for four tasks is done, with an unknown total."""
    snapshot = workshop.tune(workshop.prepare(), 1)

    assert snapshot.total_latency_secs == float("inf")
    assert workshop.job().state == "done"


def test_a_job_without_a_latency_fails_with_the_last_error(workshop: Workshop) -> None:
    """A job none of whose candidates ran reports the error of the last one."""
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


def test_status_says_when_the_cpu_is_measured(workshop: Workshop) -> None:
    """Every phase that times candidates is marked, and no other."""
    statuses: list[TuningStatus] = []

    workshop.tune(workshop.prepare(), 24, on_status=statuses.append)

    assert {status.phase for status in statuses if not status.is_measuring_cpu} == {
        "choosing",
        "searching",
    }
    assert any(status.is_measuring_cpu for status in statuses)
    assert statuses[-1].spent_trials == 24


def test_tasks_with_schedules_by_rule_are_looked_at_once_first(workshop: Workshop) -> None:
    """One trial of each shows where the time goes, before any gets a whole round."""
    prepared = workshop.prepare()
    target = replace(prepared.target, has_schedules_by_rule=True)

    workshop.tune(replace(prepared, target=target), 24, trials_per_round=8)

    with workshop.sessions() as session:
        stored = session.scalars(select(Pick).order_by(Pick.sequence)).all()
    first, later = stored[: toy.N_TASKS], stored[toy.N_TASKS :]
    assert {(pick.terms["reason"], pick.n_trials) for pick in first} == {("warm_up", 1)}
    assert len({pick.task_id for pick in first}) == toy.N_TASKS
    assert {pick.n_trials for pick in later[:-1]} == {8}


def test_picks_hold_their_reasons(workshop: Workshop) -> None:
    """Every pick stores the reason of its choice and the newest record that its round may know."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=4)

    with workshop.sessions() as session:
        terms = [pick.terms for pick in session.scalars(select(Pick).order_by(Pick.sequence))]
    assert {"warm_up"} < {term["reason"] for term in terms}
    assert [term["newest_record"] for term in terms] == sorted(t["newest_record"] for t in terms)


def test_two_runs_are_the_same(workers: LocalExecutor, tmp_path: Path) -> None:
    """The same job in two databases makes the same picks and measures the same programs."""
    results = []
    for name in ("one", "two"):
        engine = database.open_database(f"sqlite:///{tmp_path / name}.db")
        shop = Workshop(database.sessions(engine), tmp_path / name, workers)
        shop.tune(shop.prepare(), 32, trials_per_round=4, cost_model="xgb-ranking")
        results.append((shop.trials(), picks_of(shop.sessions)))
        engine.dispose()

    assert results[0] == results[1]


def test_a_session_that_is_interrupted_anywhere_continues_as_an_undisturbed_one(
    workers: LocalExecutor, tmp_path: Path
) -> None:
    """Interrupts at random steps change neither the picks nor the records."""
    undisturbed = _shop(workers, tmp_path / "undisturbed")
    options: dict[str, Any] = {"trials_per_round": 4, "cost_model": "xgb-ranking"}
    undisturbed.tune(undisturbed.prepare(), 32, **options)
    disturbed = _shop(workers, tmp_path / "disturbed")
    rng = random.Random(4)
    n_breaks = 0
    while not _done(disturbed):
        n_breaks += 1
        session = disturbed.session(disturbed.prepare(), 32, **options)
        _break_after(session, rng.randrange(1, 16))
        with pytest.raises(_Broken):
            disturbed.run_alone(session)
        assert disturbed.job().state == "paused"
        if len(disturbed.trials()) >= 30:
            disturbed.tune(disturbed.prepare(), 32, **options)

    assert n_breaks > 3
    assert disturbed.trials() == undisturbed.trials()
    assert picks_of(disturbed.sessions) == picks_of(undisturbed.sessions)


def test_an_open_round_of_a_removed_task_is_given_up(workshop: Workshop) -> None:
    """After an upgrade by which the network has other tasks, the job continues with those."""
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


def test_the_end_of_a_round_and_its_result_are_stored_together(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies between the two finds the round open, and reports its end once."""
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

    assert [data["n_measured"] for data in _round_events(workshop)] == [8]


def test_a_round_whose_search_failed_is_reported(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event of its end says that nothing was measured."""
    session = workshop.session(workshop.prepare(), 8, trials_per_round=8)
    propose: Callable[..., Awaitable[list[Candidate]]] = session._round_runner._propose
    failures = [WorkError("out of luck")]

    async def failing(*args: object) -> list[Candidate]:
        if failures:
            raise failures.pop()
        return await propose(*args)

    monkeypatch.setattr(session._round_runner, "_propose", failing)
    workshop.run_alone(session)

    assert [data["n_measured"] for data in _round_events(workshop)] == [0, 8]


def test_a_round_that_others_left_nothing_for_exhausts_no_task(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that proposed candidates, but found the budget spent by others, can be repeated."""
    job = workshop.session(workshop.prepare(), 40, trials_per_round=8)
    propose = job._round_runner._propose

    async def slow(*args: Any) -> list[Candidate]:
        candidates = await propose(*args)
        if len(workshop.trials()) == 8:
            monkeypatch.setattr(job._limits, "budget", Budget(8))
        return candidates

    monkeypatch.setattr(job._round_runner, "_propose", slow)
    snapshot = workshop.run_alone(job)

    assert [row.n_trials for row in snapshot.rows if row.n_trials] == [8]
    assert not any(row.exhausted for row in snapshot.rows)


class _Broken(BaseException):
    """The end of a process for any reason."""


def _break_after(session: TuningSession, n_steps: int) -> None:
    """Make the n-th step of a session that uses the database raise."""
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


def _round_events(shop: Workshop) -> list[dict[str, Any]]:
    with shop.sessions() as session:
        stored = events.events_after(session, 1, 0)
    return [event.data for event in stored if event.kind == "round"]


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

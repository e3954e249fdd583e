"""Tests of measuring best records again: each result is stored once, under its version."""

from typing import Any

import pytest
from sqlalchemy import func, select

from records import database, measure_records
from records.logs import other_targets
from records.models import BestRecord, ImportedRound, Job, MeasureRecord, Pick, Target
from records.tuning import rounds
from tests.engines import toy
from tests.engines.toy_network import Workshop, bests_of
from tests.engines.upgrades import age
from tuner.context import Context
from tuner.errors import RequestError, TargetError
from tuner.settings import Settings
from tuner.tuning.rounds import remeasure
from tuner.tuning.rounds.remeasure_options import Verified, VerifyRequest

N_TASKS = toy.N_TASKS


@pytest.fixture
def upgraded(workshop: Workshop) -> Workshop:
    """Return a workshop whose network was tuned by an earlier version."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    age(workshop.sessions, tvm="1")
    return workshop


def context_of(workshop: Workshop, engine: str = toy.NAME) -> Context:
    """Return the context that a command opens."""
    bind = workshop.sessions.kw["bind"]
    readers = database.sessions(bind, read_only=True)
    return Context(Settings("", workshop.folder, engine, 1), bind, workshop.sessions, readers)


def verify(workshop: Workshop, **options: Any) -> Verified:
    """Measure records again and return the results."""
    return remeasure.verify_records(context_of(workshop), VerifyRequest(**options), lambda *_: None)


def old_bests(workshop: Workshop) -> dict[int, tuple[str, float]]:
    """Return trace and latency of the best records of all targets, by record."""
    with workshop.sessions() as session:
        rows = session.execute(
            select(MeasureRecord.id, MeasureRecord.trace_hash, MeasureRecord.latency).join(
                BestRecord, BestRecord.record_id == MeasureRecord.id
            )
        )
        return {row[0]: (row[1], row[2] or 0.0) for row in rows}


def test_best_records_of_another_version_become_those_of_this(upgraded: Workshop) -> None:
    """Each is measured once, verified and best of its task; the old records do not change."""
    before = old_bests(upgraded)

    report = verify(upgraded)

    after = old_bests(upgraded)
    assert len(report.rows) == report.n_verified == N_TASKS
    assert report.n_left == 0
    for row in report.rows:
        trace, latency = before[row.old_record]
        assert row.best
        assert row.record is not None
        assert after[row.record][0] == trace
        assert after[row.record][1] == pytest.approx(latency)
        assert row.change == pytest.approx(0.0)
        assert row.differs == {"tvm": ("1", None)}
    assert before.items() <= after.items()
    costs = [row.weight * row.old_latency for row in report.rows]
    assert costs == sorted(costs, reverse=True)
    assert verify(upgraded).rows == ()


def test_only_the_top_tasks_are_measured_and_the_next_run_continues(upgraded: Workshop) -> None:
    """Tasks that matter most come first, and the next run leaves out measured ones."""
    first = verify(upgraded, top=1)
    second = verify(upgraded, top=2)

    assert [row.name for row in first.rows] == ["heavy[1]"]
    assert first.n_left == N_TASKS - 1
    assert len(second.rows) == 2
    assert second.n_left == 1
    assert len({row.old_record for row in (*first.rows, *second.rows)}) == 3


def test_several_records_of_each_task(upgraded: Workshop) -> None:
    """The best three records of a task are measured, and the fastest becomes the best."""
    report = verify(upgraded, top=1, per_task=3)

    assert len(report.rows) == 3
    assert [row.best for row in report.rows] == [True, False, False]
    assert len({row.record for row in report.rows}) == 3


def test_a_job_limits_the_workloads(upgraded: Workshop) -> None:
    """Tasks of the job in the other version give the workloads; an unknown job is an error."""
    with upgraded.sessions() as session:
        job_id = session.scalars(select(Job.id)).one()
    other = upgraded.prepare("other", batch=2)
    upgraded.tune(other, 24, trials_per_round=6)
    age(upgraded.sessions, tvm="1.5")

    report = verify(upgraded, job=job_id)

    assert "batch_2[1]" not in {row.name for row in report.rows}
    assert len(report.rows) == N_TASKS
    with pytest.raises(RequestError, match="no job 99"):
        verify(upgraded, job=99)
    with pytest.raises(TargetError, match="unknown target"):
        verify(upgraded, target="nonsense")


def test_totals_are_those_of_the_records(upgraded: Workshop) -> None:
    """Totals of records without a pick are kept with their task, as those of imported ones."""
    verify(upgraded)
    verify(upgraded, current=True)

    with upgraded.sessions() as session:
        from_records = session.execute(
            select(
                MeasureRecord.task_id,
                func.count(),
                func.min(MeasureRecord.latency),
                func.sum(MeasureRecord.latency),
            )
            .where(MeasureRecord.pick_id.is_(None))
            .group_by(MeasureRecord.task_id)
        ).all()
        totals = session.execute(
            select(
                ImportedRound.task_id,
                ImportedRound.n_measured,
                ImportedRound.best_secs,
                ImportedRound.run_secs,
            )
        ).all()
        workers = set(session.scalars(select(MeasureRecord.worker)))
    assert sorted(map(tuple, from_records)) == sorted(map(tuple, totals))
    assert len(totals) == N_TASKS
    assert workers == {"local", remeasure.WORKER}


def test_tuning_goes_on_from_verified_records(upgraded: Workshop) -> None:
    """They count as trials of other jobs, are not proposed again, and train cost models."""
    verify(upgraded)
    prepared = upgraded.prepare()
    with upgraded.sessions() as session:
        verified = {
            (task.task_id, record.trace_hash)
            for task in prepared.tasks
            for record in measure_records.past_trials(session, task.task_id, None)
        }
        histories = rounds.history(session, [task.task_id for task in prepared.tasks])
        replay = other_targets.ranked(session, prepared.tasks[0].task_id, 1)[0]
    assert len(verified) == N_TASKS
    assert all(len(past) == 1 and past[0].pick_id is None for past in histories.values())
    assert replay.features is not None

    snapshot = upgraded.tune(prepared, 24, trials_per_round=6)

    assert sum(snapshot.others) == N_TASKS
    assert sum(snapshot.own) <= 24
    best = {task_id: latency for task_id, _, latency, _ in bests_of(upgraded.sessions)}
    with upgraded.sessions() as session:
        traces = [
            (record.task_id, record.trace_hash)
            for record in session.scalars(select(MeasureRecord).where(MeasureRecord.pick_id > 0))
        ]
        assert not verified & set(traces)
        for task in prepared.tasks:
            first = histories[task.task_id][0].best_secs
            assert best[task.task_id] <= first * 1.01
    assert upgraded.tune(prepared, 24, trials_per_round=6).own == snapshot.own


def test_an_open_round_is_finished_after_a_verification(workshop: Workshop) -> None:
    """Records stored in between neither complete the round nor count as its own."""
    prepared = workshop.prepare()
    workshop.tune(prepared, 24, trials_per_round=6)
    age(workshop.sessions, tvm="1")
    prepared = workshop.prepare()
    session = workshop.session(prepared, 20, trials_per_round=5)
    session.start()
    workshop.run_round(session)
    session.suspend("queued")
    with workshop.sessions.begin() as writing:
        pick = writing.scalars(select(Pick).order_by(Pick.id.desc()).limit(1)).one()
        pick.done = False
        n_before = pick.n_measured

    verify(workshop)

    with workshop.sessions() as reading:
        assert reading.get_one(Pick, pick.id).n_measured == n_before
    snapshot = workshop.tune(prepared, 20, trials_per_round=5)
    assert sum(snapshot.own) + sum(snapshot.others) >= 20
    assert sum(snapshot.own) <= 20
    with workshop.sessions() as reading:
        assert reading.scalar(select(func.count()).where(Pick.done.is_(False))) == 0


def test_records_of_this_version_are_checked_and_not_added(workshop: Workshop) -> None:
    """A record of this version exists already, so its new samples are only reported."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    before, bests_before = len(workshop.trials()), bests_of(workshop.sessions)

    report = verify(workshop, current=True, top=2)

    assert [row.record for row in report.rows] == [row.old_record for row in report.rows]
    assert all(row.change == pytest.approx(0.0) and row.best for row in report.rows)
    assert report.n_left == N_TASKS - 2
    assert len(workshop.trials()) == before
    assert bests_of(workshop.sessions) == bests_before


def test_current_records_need_no_network_of_this_version(upgraded: Workshop) -> None:
    """The calls come from networks that only the other version has extracted."""
    verify(upgraded)

    report = verify(upgraded, current=True)

    assert {row.name: row.weight for row in report.rows}["heavy[1]"] == 3
    assert len(report.rows) == N_TASKS


def test_a_wrong_result_is_a_record_and_never_the_best(
    upgraded: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task stays stale, and the next run measures its second best record."""
    monkeypatch.setenv("TOY_WRONG", "heavy")

    first = verify(upgraded)

    failed = first.rows[0]
    assert (failed.name, failed.error_kind, failed.error_text) == (
        "heavy[1]",
        "wrong_result",
        "off by 1",
    )
    assert (failed.latency, failed.change, failed.best) == (None, None, False)
    assert first.n_verified == N_TASKS - 1
    with upgraded.sessions() as session:
        record = session.get_one(MeasureRecord, failed.record)
        assert session.get(BestRecord, record.task_id) is None
    monkeypatch.setenv("TOY_WRONG", "")
    (second,) = verify(upgraded).rows
    assert second.old_record != failed.old_record
    assert second.best


def test_a_lost_worker_costs_a_record_nothing(
    upgraded: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker killed from outside leaves the record for the next run."""
    monkeypatch.setenv("TOY_LOST", "heavy")

    first = verify(upgraded, top=1).rows[0]
    monkeypatch.setenv("TOY_LOST", "")
    second = verify(upgraded, top=1).rows[0]

    assert (first.error_kind, first.record) == ("worker_lost", None)
    assert second.old_record == first.old_record
    assert second.best


def test_a_record_of_this_version_that_is_wrong_is_withdrawn(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next best record replaces it, also in the totals that the scheduler reads."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    monkeypatch.setenv("TOY_WRONG", "heavy")

    row = verify(workshop, current=True, top=1).rows[0]

    with workshop.sessions() as session:
        record = session.get_one(MeasureRecord, row.old_record)
        best = session.get_one(BestRecord, record.task_id)
        assert not record.verified
        assert best.record_id != record.id
        assert record.latency is not None
        assert best.latency >= record.latency * 0.98
        history = rounds.history(session, [record.task_id])[record.task_id]
        fastest = other_targets.ranked(session, record.task_id, 100)
        assert history[-1].best_secs == min(record.latency for record in fastest)


def test_results_before_a_stop_are_kept(upgraded: Workshop) -> None:
    """A run that is stopped after two results leaves two records and a free device."""

    class Enough(Exception):  # noqa: N818
        """Request to stop."""

    def stop(number: int, _n_records: int, _row: Any) -> None:
        if number == 2:
            raise Enough

    with pytest.raises(Enough):
        remeasure.verify_records(context_of(upgraded), VerifyRequest(), stop)

    assert len(verify(upgraded).rows) == N_TASKS - 2


def test_records_are_timed_as_those_of_the_target_were(upgraded: Workshop) -> None:
    """Settings come from jobs of the target, else of the other version; extras are ignored."""
    with upgraded.sessions.begin() as session:
        (job,) = session.scalars(select(Job))
        evaluator = {**job.settings["evaluator"], "repeat": 7, "gone": 1}
        job.settings = {**job.settings, "evaluator": evaluator}
        (target_id,) = session.scalars(select(Target.id))
    context = context_of(upgraded)

    assert remeasure._evaluator(context, [99, target_id]).repeat == 7
    assert remeasure._evaluator(context, [99]).repeat == 3


def test_a_sanitizer_withdraws_records_that_it_reports(workshop: Workshop) -> None:
    """A verified record whose threads race is wrong."""
    workshop.tune(workshop.prepare(), 40, trials_per_round=10)
    unsanitized = verify(workshop, current=True)

    report = verify(workshop, current=True, sanitize=True)

    assert unsanitized.n_verified == N_TASKS
    wrong = {row.old_record for row in report.rows if row.error_kind == "wrong_result"}
    assert wrong
    assert {row.error_text for row in report.rows if row.latency is None} == {
        "racecheck: Race reported"
    }
    with workshop.sessions() as session:
        verified = set(session.scalars(select(MeasureRecord.id).where(MeasureRecord.verified)))
        best = set(session.scalars(select(BestRecord.record_id)))
    assert not wrong & (verified | best)

"""Best records are measured again, stored as what they are, and counted by nobody twice."""

from typing import Any

import pytest
from sqlalchemy import func, select

from records import database, measure_records, other_targets, rounds
from records.models import BestRecord, ImportedRound, Job, MeasureRecord, Pick, Target, Workload
from tests.engines import toy, toy_wrong
from tests.engines.toy_network import Workshop, bests_of
from tests.engines.upgrades import age
from tuner.context import Context
from tuner.errors import RequestError, TargetError
from tuner.settings import Settings
from tuner.tuning import remeasure
from tuner.tuning.remeasure_options import Verified, VerifyRequest

N_TASKS = toy.N_TASKS


@pytest.fixture
def upgraded(workshop: Workshop) -> Workshop:
    """A workshop whose network was tuned by version 1, as version 2 finds it."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    age(workshop.sessions, tvm="1")
    return workshop


def context_of(workshop: Workshop, engine: str = toy.NAME) -> Context:
    """What a command would have opened."""
    bind = workshop.sessions.kw["bind"]
    readers = database.sessions(bind, read_only=True)
    return Context(Settings("", workshop.folder, engine, 1), bind, workshop.sessions, readers)


def verify(workshop: Workshop, **asked: Any) -> Verified:
    """Measure again, telling nobody."""
    return remeasure.verify_records(
        context_of(workshop), VerifyRequest(**asked), lambda *_told: None
    )


def old_bests(workshop: Workshop) -> dict[int, tuple[str, float]]:
    """Trace and latency of the best records of all targets, by record."""
    with workshop.sessions() as session:
        rows = session.execute(
            select(MeasureRecord.id, MeasureRecord.trace_hash, MeasureRecord.latency).join(
                BestRecord, BestRecord.record_id == MeasureRecord.id
            )
        )
        return {row[0]: (row[1], row[2] or 0.0) for row in rows}


def test_the_best_of_another_version_become_those_of_this(upgraded: Workshop) -> None:
    """Each is measured once, verified, and best of its task; the old ones stay what they are."""
    before = old_bests(upgraded)

    found = verify(upgraded)

    after = old_bests(upgraded)
    assert len(found.rows) == found.n_verified == N_TASKS
    assert found.n_left == 0
    for row in found.rows:
        trace, latency = before[row.old_record]
        assert row.best
        assert row.record is not None
        assert after[row.record][0] == trace
        assert after[row.record][1] == pytest.approx(latency)
        assert row.change == pytest.approx(0.0)
        assert row.differs == {"tvm": ("1", None)}
    assert before.items() <= after.items()
    costs = [row.weight * row.old_latency for row in found.rows]
    assert costs == sorted(costs, reverse=True)
    assert verify(upgraded).rows == ()


def test_only_the_top_are_measured_and_the_next_run_goes_on(upgraded: Workshop) -> None:
    """What matters most goes first; what was measured is left out of the next top."""
    first = verify(upgraded, top=1)
    second = verify(upgraded, top=2)

    assert [row.name for row in first.rows] == ["heavy[1]"]
    assert first.n_left == N_TASKS - 1
    assert len(second.rows) == 2
    assert second.n_left == 1
    assert len({row.old_record for row in (*first.rows, *second.rows)}) == 3


def test_several_of_each_task(upgraded: Workshop) -> None:
    """The best three of a task are measured side by side, and the fastest of them is the best."""
    found = verify(upgraded, top=1, per_task=3)

    assert len(found.rows) == 3
    assert [row.best for row in found.rows] == [True, False, False]
    assert len({row.record for row in found.rows}) == 3


def test_what_a_job_needs_and_no_more(upgraded: Workshop) -> None:
    """Its tasks of the other version say which workloads; an unknown job is refused."""
    with upgraded.sessions() as session:
        job_id = session.scalars(select(Job.id)).one()
    other = upgraded.prepare("other", batch=2)
    upgraded.tune(other, 24, trials_per_round=6)
    age(upgraded.sessions, tvm="1.5")

    found = verify(upgraded, job=job_id)

    assert "batch_2[1]" not in {row.name for row in found.rows}
    assert len(found.rows) == N_TASKS
    with pytest.raises(RequestError, match="no job 99"):
        verify(upgraded, job=99)
    with pytest.raises(TargetError, match="unknown target"):
        verify(upgraded, target="nonsense")


def test_sums_are_those_of_the_records(upgraded: Workshop) -> None:
    """Records that no pick paid for are summed up beside their task, as imported ones are."""
    verify(upgraded)
    verify(upgraded, current=True)

    with upgraded.sessions() as session:
        counted = session.execute(
            select(
                MeasureRecord.task_id,
                func.count(),
                func.min(MeasureRecord.latency),
                func.sum(MeasureRecord.latency),
            )
            .where(MeasureRecord.pick_id.is_(None))
            .group_by(MeasureRecord.task_id)
        ).all()
        kept = session.execute(
            select(
                ImportedRound.task_id,
                ImportedRound.n_measured,
                ImportedRound.best_secs,
                ImportedRound.run_secs,
            )
        ).all()
        workers = set(session.scalars(select(MeasureRecord.worker)))
    assert sorted(map(tuple, counted)) == sorted(map(tuple, kept))
    assert len(kept) == N_TASKS
    assert workers == {"local", remeasure.WORKER}


def test_tuning_goes_on_from_verified_records(upgraded: Workshop) -> None:
    """They count as trials of others, none of them is proposed again, and models learn of them."""
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
    assert all(len(h) == 1 and h[0].pick_id is None for h in histories.values())
    assert replay.features is not None

    overview = upgraded.tune(prepared, 24, trials_per_round=6)

    assert sum(overview.others) == N_TASKS
    assert sum(overview.own) <= 24
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
    assert upgraded.tune(prepared, 24, trials_per_round=6).own == overview.own


def test_an_open_round_is_finished_after_a_verification(workshop: Workshop) -> None:
    """Records that came in between neither complete it nor are counted as its own."""
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
    overview = workshop.tune(prepared, 20, trials_per_round=5)
    assert sum(overview.own) + sum(overview.others) >= 20
    assert sum(overview.own) <= 20
    with workshop.sessions() as reading:
        assert reading.scalar(select(func.count()).where(Pick.done.is_(False))) == 0


def test_records_of_today_are_told_and_not_added(workshop: Workshop) -> None:
    """Has the machine changed? A record is there already, so its samples are told only."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    before, bests_before = len(workshop.trials()), bests_of(workshop.sessions)

    found = verify(workshop, current=True, top=2)

    assert [row.record for row in found.rows] == [row.old_record for row in found.rows]
    assert all(row.change == pytest.approx(0.0) and row.best for row in found.rows)
    assert found.n_left == N_TASKS - 2
    assert len(workshop.trials()) == before
    assert bests_of(workshop.sessions) == bests_before


def test_current_records_need_no_network_of_this_version(upgraded: Workshop) -> None:
    """The calls are those of networks that only the other version has split."""
    verify(upgraded)

    found = verify(upgraded, current=True)

    assert {row.name: row.weight for row in found.rows}["heavy[1]"] == 3
    assert len(found.rows) == N_TASKS


def wrong(workshop: Workshop, **asked: Any) -> Verified:
    """Measure again, where ``TOY_WRONG`` and ``TOY_LOST`` say what goes wrong."""
    with workshop.sessions.begin() as session:
        for workload in session.scalars(select(Workload)):
            workload.engine = toy_wrong.NAME
    context = context_of(workshop, toy_wrong.NAME)
    return remeasure.verify_records(context, VerifyRequest(**asked), lambda *_told: None)


def test_a_wrong_result_is_a_record_and_never_the_best(
    upgraded: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task is still stale, and the next run measures the second best."""
    monkeypatch.setenv("TOY_WRONG", "heavy")

    first = wrong(upgraded)

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
    (second,) = wrong(upgraded).rows
    assert second.old_record != failed.old_record
    assert second.best


def test_a_lost_worker_costs_a_record_nothing(
    upgraded: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What killed it came from outside: the next run measures the same record."""
    monkeypatch.setenv("TOY_LOST", "heavy")

    first = wrong(upgraded, top=1).rows[0]
    monkeypatch.setenv("TOY_LOST", "")
    second = wrong(upgraded, top=1).rows[0]

    assert (first.error_kind, first.record) == ("worker_lost", None)
    assert second.old_record == first.old_record
    assert second.best


def test_a_record_of_today_that_is_wrong_is_withdrawn(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next best follows it, in the sums that the scheduler reads, too."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    monkeypatch.setenv("TOY_WRONG", "heavy")

    row = wrong(workshop, current=True, top=1).rows[0]

    with workshop.sessions() as session:
        record = session.get_one(MeasureRecord, row.old_record)
        best = session.get_one(BestRecord, record.task_id)
        assert not record.verified
        assert best.record_id != record.id
        assert record.latency is not None
        assert best.latency >= record.latency * 0.98
        history = rounds.history(session, [record.task_id])[record.task_id]
        fastest = other_targets.ranked(session, record.task_id, 100)
        assert history[-1].best_secs == min(each.latency for each in fastest)


def test_what_was_measured_before_a_stop_is_kept(upgraded: Workshop) -> None:
    """A watcher that gives up after two leaves two records, and a free device."""

    class Enough(Exception):  # noqa: N818
        """Somebody stops."""

    def stop(number: int, _n_all: int, _row: Any) -> None:
        if number == 2:
            raise Enough

    with pytest.raises(Enough):
        remeasure.verify_records(context_of(upgraded), VerifyRequest(), stop)

    assert len(verify(upgraded).rows) == N_TASKS - 2


def test_records_are_timed_as_those_of_the_target_were(upgraded: Workshop) -> None:
    """By the evaluator of its own jobs, else of those of the other version; extras are ignored."""
    with upgraded.sessions.begin() as session:
        (job,) = session.scalars(select(Job))
        evaluator = {**job.settings["evaluator"], "repeat": 7, "gone": 1}
        job.settings = {**job.settings, "evaluator": evaluator}
        (target_id,) = session.scalars(select(Target.id))
    context = context_of(upgraded)

    assert remeasure._evaluator(context, [99, target_id]).repeat == 7
    assert remeasure._evaluator(context, [99]).repeat == 3


def test_a_sanitizer_withdraws_what_it_finds_wrong(workshop: Workshop) -> None:
    """A record whose output agrees is wrong all the same if its threads race."""
    workshop.tune(workshop.prepare(), 40, trials_per_round=10)
    calm = verify(workshop, current=True)

    found = verify(workshop, current=True, sanitize=True)

    assert calm.n_verified == N_TASKS
    wrong = {row.old_record for row in found.rows if row.error_kind == "wrong_result"}
    assert wrong
    assert {row.error_text for row in found.rows if row.latency is None} == {
        "racecheck: Race reported"
    }
    with workshop.sessions() as session:
        kept = set(session.scalars(select(MeasureRecord.id).where(MeasureRecord.verified)))
        best = set(session.scalars(select(BestRecord.record_id)))
    assert not wrong & (kept | best)

"""Events of a job have gapless numbers in the order of their commits."""

import threading

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from records import database, jobs, measure_records, picks
from records.errors import NoSuchRow
from records.tuning import events
from tests.records import make


def test_a_round_leaves_a_sequence_of_events(session: Session) -> None:
    """A pick, its trials and the end of its round follow each other, with their data."""
    task_id, job_id = make.task(session), make.job(session)
    pick = make.pick(session, job_id, task_id, 2, {"reason": "warm_up"})
    measure_records.add_record(session, make.timed(task_id, "a", 2.0, pick_id=pick.id))
    measure_records.add_record(session, make.failed(task_id, "b", pick_id=pick.id))
    measure_records.add_record(session, make.failed(task_id, "b", pick_id=pick.id))  # counted once
    ending = picks.RoundEnd(pick.id, job_id, 3.0, float("inf"), spent_trials=2, job_trials=2)
    picks.end_picks(session, [ending])

    history = events.events_after(session, job_id, 0)

    assert [event.sequence for event in history] == [1, 2, 3, 4]
    assert [event.kind for event in history] == ["pick", "trial", "trial", "round"]
    assert [
        (event.data["latency_secs"], event.data["error_kind"], event.data["best"])
        for event in history[1:3]
    ] == [
        (2.0, None, True),
        (None, "run_error", False),
    ]
    assert history[3].data["total_secs"] is None
    assert history[3].data["n_failed"] == 1


def test_readers_resume_after_any_event(session: Session) -> None:
    """The events after a number do not depend on earlier reads."""
    job_id = make.job(session)
    for number in range(5):
        assert events.add_event(session, job_id, "status", {"phase": str(number)}) == number + 1

    assert [e.sequence for e in events.events_after(session, job_id, 2)] == [3, 4, 5]
    assert [e.sequence for e in events.events_after(session, job_id, 2, limit=1)] == [3]
    assert events.events_after(session, job_id, 5) == []
    assert events.last_events(session, [job_id, 99]) == {job_id: (5, "queued")}


def test_no_event_becomes_visible_after_a_later_one(engine: Engine) -> None:
    """Readers see the events of concurrent writers in the order of their numbers."""
    sessions = database.sessions(engine)
    with sessions.begin() as session:
        job_id = make.job(session)

    def write() -> None:
        for _ in range(20):
            with sessions.begin() as session:
                events.add_event(session, job_id, "status", {})

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    seen: list[int] = []
    while any(writer.is_alive() for writer in writers) or len(seen) < 80:
        with database.sessions(engine, read_only=True)() as session:
            new = events.events_after(session, job_id, seen[-1] if seen else 0)
            seen += [event.sequence for event in new]
    for writer in writers:
        writer.join()

    assert seen == list(range(1, 81))


def test_an_event_is_added_when_the_state_changes(session: Session) -> None:
    """Setting the same state again adds no event."""
    job_id = make.job(session)
    jobs.set_state(session, job_id, "running")
    jobs.set_state(session, job_id, "running")
    jobs.set_state(session, job_id, "failed", "no space left")

    history = events.events_after(session, job_id, 0)

    assert [event.data for event in history] == [
        {"state": "running", "message": None},
        {"state": "failed", "message": "no space left"},
    ]


def test_status_is_the_last_one_set(session: Session) -> None:
    """Omitted gains stay; an omitted task is cleared."""
    job_id, task_id = make.job(session), make.task(session)
    events.set_status(
        session,
        job_id,
        phase="choosing",
        gains={str(task_id): float("inf")},
        spent_trials=0,
        outlook=None,
    )
    events.set_status(session, job_id, phase="searching", task_id=task_id, spent_trials=8)

    status = events.status_of(session, job_id)

    assert status is not None
    session.refresh(status)
    assert (status.phase, status.task_id, status.gains) == ("searching", task_id, {"1": None})
    assert (status.spent_trials, status.outlook) == (8, None)


def test_events_need_a_job(session: Session) -> None:
    """An unknown job id is an error."""
    with pytest.raises(NoSuchRow, match="no job 7"):
        events.add_event(session, 7, "status", {})

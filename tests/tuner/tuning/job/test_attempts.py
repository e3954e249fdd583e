"""Rounds that earlier processes died over."""

import asyncio

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from records.models import Job, Pick
from records.picks import NewPick
from records.tuning import attempts, suspects
from tests.engines.toy_network import Workshop
from tuner.jobs.spec import TuneSpec
from tuner.measure.crash_counts import QUARANTINE_REASON
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.job.suspects import UnsettledAttempts
from tuner.tuning.session import TuningSession


def open_round(shop: Workshop, n_deaths: int, submission: str = "s") -> TuningSession:
    """Open a job with a round that this number of processes began and did not end."""
    options = SessionOptions(TuneSpec(trials=8, cost_model="random"), submission=submission)
    prepared = shop.prepare()
    session = TuningSession(shop.context, prepared, options, lambda _status: None)

    async def choose() -> Pick:
        session.start()
        pick = session.next_pick()
        assert isinstance(pick, NewPick)
        return shop.context.store_picks([pick])[0]

    stored = asyncio.run(choose())
    with shop.sessions.begin() as database:
        database.get_one(Pick, stored.id).attempts = n_deaths
    shop._context = None
    return TuningSession(shop.context, prepared, options, lambda _status: None)


def attempts_at(shop: Workshop) -> int:
    """Read the attempts at the first round."""
    with shop.sessions() as database:
        return database.get_one(Pick, 1).attempts


@pytest.mark.parametrize("n_deaths", [1, attempts.SUSPECT_DEATHS])
def test_a_round_is_tried_again_after_a_death(workshop: Workshop, n_deaths: int) -> None:
    """It completes, and its job ends as if nothing had happened."""
    session = open_round(workshop, n_deaths)

    workshop.run(session)

    assert workshop.job().state == "done"
    assert len(workshop.trials()) == 8


def test_the_third_death_quarantines_the_job_of_a_round(workshop: Workshop) -> None:
    """The message names the round; nothing of it is measured."""
    session = open_round(workshop, attempts.MAX_DEATHS)

    workshop.run(session)

    job = workshop.job()
    assert (job.state, job.quarantined) == ("failed", True)
    assert "the worker's process died 3 times while running round 1" in (job.message or "")
    assert workshop.trials() == []
    with workshop.sessions.begin() as database:
        assert attempts.release(database, job.id)
    assert attempts_at(workshop) == 0


def test_a_user_decides_about_the_rounds_of_a_command_line(workshop: Workshop) -> None:
    """The user has started the command again, however often it died."""
    session = open_round(workshop, attempts.MAX_DEATHS, submission="")

    workshop.run(session)

    assert workshop.job().state == "done"


def test_a_suspect_waits_without_holding_up_its_job(workshop: Workshop) -> None:
    """While another suspect runs, the job goes on with other rounds, and the suspect is next."""
    session = open_round(workshop, attempts.SUSPECT_DEATHS)

    async def work() -> None:
        context = workshop.context
        session.start()
        assert context.suspect_turn.try_take()
        assert isinstance(session.next_pick(), NewPick)
        assert attempts_at(workshop) == attempts.SUSPECT_DEATHS

        context.suspect_turn.give_back()
        pick = session.next_pick()
        assert isinstance(pick, Pick)
        assert not context.suspect_turn.try_take()
        session.on_round_started(pick)
        await session.run_round(pick, await context.device_for(session.target))
        assert context.suspect_turn.try_take()

    asyncio.run(work())


def test_a_suspect_that_is_not_begun_leaves_its_turn(workshop: Workshop) -> None:
    """A job that ends with the turn of its round gives it back."""
    session = open_round(workshop, attempts.SUSPECT_DEATHS)

    async def work() -> None:
        session.start()
        assert isinstance(session.next_pick(), Pick)
        assert not workshop.context.suspect_turn.try_take()
        session.suspend("queued")
        assert workshop.context.suspect_turn.try_take()

    asyncio.run(work())


def test_a_lost_database_is_not_a_death(workshop: Workshop) -> None:
    """The process takes its attempts back once there is a database; earlier deaths stay."""
    session = open_round(workshop, 1)
    job_id = session.job_id
    with workshop.sessions.begin() as database:
        for _ in range(2):
            attempts.begin_job(database, job_id)
    unsettled = UnsettledAttempts()
    unsettled.add_job(job_id)
    unsettled.add_rounds(job_id)

    def lose(*_: object) -> None:
        raise OperationalError("UPDATE", {}, Exception("the server does not answer"))

    event.listen(workshop.sessions.kw["bind"], "begin", lose)
    with pytest.raises(OperationalError):
        unsettled.settle(workshop.sessions)
    event.remove(workshop.sessions.kw["bind"], "begin", lose)
    for _ in range(2):
        unsettled.settle(workshop.sessions)

    with workshop.sessions() as database:
        assert database.get_one(Job, job_id).attempts == 1
    assert attempts_at(workshop) == 0


def test_suspects_are_known_to_the_next_coordinator(workshop: Workshop) -> None:
    """The blame of one run is read by the next."""

    async def blame() -> None:
        workshop.prepare()
        workshop.context.measure_context.crash_counts.blame(1, "trace")
        workshop.context.record_writer.flush()

    for is_quarantined in (False, True):
        asyncio.run(blame())
        workshop._context = None
        counts = workshop.context.measure_context.crash_counts
        assert counts.is_quarantined(1, "trace") == is_quarantined
    with workshop.sessions() as database:
        assert list(suspects.all_suspects(database).values()) == [2.0]
    assert "2 devices" in QUARANTINE_REASON

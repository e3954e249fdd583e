"""Leases of the jobs of commands: one command at a time tunes a job."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.models import Target
from records.service import leases
from tests.faults.conftest import Repeat
from tests.records import make
from tuner.errors import WorkError
from tuner.files.process_tags import process_tag
from tuner.tuning.job.job_leases import JobLeases

_ROLE = f"{leases.JOB_PREFIX}1"
_OTHER = "elsewhere:42:a-process-of-another-machine"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """An empty database."""
    return database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")


@pytest.fixture
def writers(engine: Engine) -> sessionmaker[Session]:
    """Sessions of the command."""
    return database.sessions(engine)


def acquire_elsewhere(engine: Engine, secs: float, holder: str = _OTHER) -> None:
    """Let another process acquire the lease of the job."""
    with database.sessions(engine).begin() as session:
        assert leases.acquire(session, _ROLE, holder, secs) is not None


def test_a_command_that_lost_its_lease_writes_nothing(
    engine: Engine, writers: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expired lease suffices until another process acquires it."""
    monkeypatch.setattr(leases, "LEASE_SECS", 0.0)
    mine = JobLeases(engine, writers)

    def write() -> None:
        with mine.holding([1]):
            for core_count in (2, 4):
                with writers.begin() as session:
                    make.target(session, core_count)
                acquire_elsewhere(engine, 60)

    with pytest.raises(WorkError, match="another process is tuning job 1 now"):
        write()

    with writers() as session:
        assert session.query(Target).count() == 1
        lease = leases.unreleased(session, _ROLE)
    assert lease is not None
    assert lease.holder == _OTHER


def test_a_lease_is_renewed_in_the_loop(
    engine: Engine, writers: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It expires later by each renewal."""
    monkeypatch.setattr(leases, "RENEWAL_INTERVAL_SECS", 0.0)
    mine = JobLeases(engine, writers)

    async def renew_once() -> None:
        task = asyncio.create_task(mine.keep())
        await asyncio.sleep(0.05)
        task.cancel()

    with mine.holding([1]):
        with writers() as session:
            before = leases.unreleased(session, _ROLE)
        asyncio.run(renew_once())
        with writers() as session:
            after = leases.unreleased(session, _ROLE)

    assert before is not None
    assert after is not None
    assert after.expires > before.expires


@pytest.mark.parametrize(
    ("holder", "secs"),
    [
        pytest.param(_OTHER, -1, id="expired"),
        pytest.param(_OTHER, 0.3, id="expires soon"),
        pytest.param("", 60, id="its process has ended"),
    ],
)
def test_a_lease_that_is_free_soon_is_waited_for(
    engine: Engine, writers: sessionmaker[Session], holder: str, secs: float
) -> None:
    """A process of this machine that has ended does not keep it."""
    tag = process_tag().split(".")
    acquire_elsewhere(engine, secs, holder or f"here:1:{'.'.join([*tag[:3], '1'])}")

    with JobLeases(engine, writers).holding([1]), writers() as session:
        lease = leases.unreleased(session, _ROLE)

    assert lease is not None
    assert lease.epoch == 2


def test_a_job_that_another_command_tunes_is_refused(
    engine: Engine, writers: sessionmaker[Session]
) -> None:
    """The error names the process, which renews its lease."""
    theirs = database.sessions(engine)
    acquire_elsewhere(engine, 60)
    is_refused = pytest.raises(WorkError, match="process 42 on elsewhere is tuning job 1")

    with (
        Repeat(lambda: _renew(theirs), lambda: 0.05),
        is_refused,
        JobLeases(engine, writers).holding([1]),
    ):
        pass


def _renew(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        leases.renew(session, leases.HeldLease(_ROLE, _OTHER, 1), 60)

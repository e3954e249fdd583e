"""Workloads are looked up by their number in a file, or by their key."""

import gzip
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import pytest
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.tasks import ensure_workload
from tests.records import make
from tests.tuner.tuning_logs import writing
from tuner.engines.environments import ENGINES
from tuner.errors import RequestError
from tuner.tuning_logs.base import BadLine
from tuner.tuning_logs.formats import Format
from tuner.tuning_logs.workloads import IncludedWorkloads, NamedWorkloads
from tuner.workers.pool import Pool, WorkerSettings

Opener = Callable[[bytes], IncludedWorkloads]


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    """Sessions of an empty database."""
    connected = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    yield database.sessions(connected)
    connected.dispose()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Pool of one worker."""
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as opened:
        yield opened


@pytest.fixture
def opened(pool: Pool, sessions: sessionmaker[Session]) -> Opener:
    """Open a packed file of workloads without calling an engine."""

    def open_(packed: bytes) -> IncludedWorkloads:
        stream = cast("IO[bytes]", gzip.GzipFile(fileobj=io.BytesIO(packed)))
        return IncludedWorkloads(stream, "no.engine", pool, sessions)

    return open_


def test_a_truncated_file_keeps_its_first_workloads(opened: Opener) -> None:
    """Only the workloads after the cut are reported as missing."""
    content = b'["1"]\n' * 3 + os.urandom(5000).hex().encode()

    held = opened(gzip.compress(content)[:-50])

    with pytest.raises(BadLine, match="workload 2 cannot be used: its workload is not a pair"):
        held.find("2")
    with pytest.raises(BadLine, match="workload 4 is not in the database: it has "):
        held.find("4")


def test_a_damaged_file_is_refused(opened: Opener) -> None:
    """The part that could be unpacked is not used either."""
    packed = bytearray(gzip.compress(b'["1"]\n'))
    packed[-6] ^= 1

    with pytest.raises(RequestError, match="cannot read workloads beyond 1: CRC check failed"):
        opened(bytes(packed))


def test_an_unreadable_workload_does_not_hide_others(
    pool: Pool, sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be from another version of the compiler."""
    monkeypatch.setitem(ENGINES, "writing", writing.NAME)
    with sessions.begin() as session:
        new = [make.workload(name, writing.NAME) for name in ("unknown", "w1")]
        _, known = [ensure_workload(session, workload).id for workload in new]

    named = NamedWorkloads(Format("ansor", "Ansor", "writing"), pool, sessions)

    assert named.find("\x00ir-w1") == known
    with pytest.raises(BadLine, match="its workload is unknown"):
        named.find("\x00ir-unknown")

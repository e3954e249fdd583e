"""The file of workloads of a MetaSchedule database may be packed, cut off or damaged."""

import gzip
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import pytest

from records import database
from tuner.errors import RequestError
from tuner.executors.pool import Pool, WorkerSettings
from tuner.logs.base import BadLine
from tuner.logs.workloads import HeldWorkloads

Opener = Callable[[bytes], HeldWorkloads]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Opens a packed file of workloads; no engine is asked."""
    connected = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
        sessions = database.sessions(connected)

        def open_(packed: bytes) -> HeldWorkloads:
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=io.BytesIO(packed)))
            return HeldWorkloads(stream, "no.engine", pool, sessions)

        yield open_
    connected.dispose()


def test_a_file_that_was_cut_off_has_the_workloads_before(opened: Opener) -> None:
    """Those behind are named as missing, and nothing else is lost."""
    content = b'["1"]\n' * 3 + os.urandom(5000).hex().encode()

    held = opened(gzip.compress(content)[:-50])

    with pytest.raises(BadLine, match="workload 2 cannot be used: its workload is not a pair"):
        held.find("2")
    with pytest.raises(BadLine, match="workload 4 is not in the database: it has "):
        held.find("4")


def test_a_damaged_file_is_refused(opened: Opener) -> None:
    """Whatever could be unpacked of it is not to be relied on."""
    packed = bytearray(gzip.compress(b'["1"]\n'))
    packed[-6] ^= 1

    with pytest.raises(RequestError, match="cannot read workloads beyond 1: CRC check failed"):
        opened(bytes(packed))

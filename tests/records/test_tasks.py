"""Workloads and tasks are inserted once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from records import database, tasks
from records.errors import NoSuchRow
from records.models import Network, Target, Task, Workload
from tests.records import make


def test_threads_that_insert_the_same_rows_agree(engine: Engine) -> None:
    """Eight threads, each with its own transaction, get the same ids."""
    factory = database.sessions(engine)

    def ensure(_: int) -> tuple[int, int]:
        with factory.begin() as session:
            return make.task(session), make.network(session)

    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(ensure, range(40)))

    assert len(seen) == 1
    with factory() as session:
        for model in (Network, Target, Task, Workload):
            assert session.scalar(select(func.count()).select_from(model)) == 1


def test_one_hash_in_two_engines_is_two_workloads(session: Session) -> None:
    """Engines compute hashes independently."""
    ids = {
        tasks.ensure_workload(session, make.workload(engine=name)).id for name in ("relax", "relay")
    }

    assert len(ids) == 2


def test_workload_ir_of_an_unknown_task_raises(session: Session) -> None:
    """The message names the id."""
    with pytest.raises(NoSuchRow, match="no task 99"):
        tasks.workload_ir(session, 99)

"""An export writes all possible records, and reports the rest with remarks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from records import database, measure_records
from records.logs import exports
from tests.records import make
from tests.tuner.tuning_logs import writing
from tuner.tuning_logs import ansor
from tuner.tuning_logs.export_log import Exporter
from tuner.tuning_logs.formats import AnsorWriter
from tuner.workers.pool import Pool, WorkerSettings


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """An empty database."""
    connected = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    with database.sessions(connected)() as opened:
        yield opened
    connected.dispose()


@pytest.fixture
def lines() -> list[str]:
    """List of the lines written."""
    return []


@pytest.fixture
def exporter(session: Session, tmp_path: Path, lines: list[str]) -> Iterator[Exporter]:
    """Exporter of that database as a log of Ansor."""
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
        yield Exporter(session, writing.NAME, pool, AnsorWriter(lines.append))


def write(exporter: Exporter, task_id: int, top: int | None = None) -> None:
    """Write a task."""
    exporter.write(exports.exported_task(exporter.session, task_id), top)


def tuned(session: Session, workload: str, n_cores: int = 2) -> int:
    """Create a task with two records."""
    task_id = make.task(session, workload, n_cores)
    for trace, secs in (("a", 2e-3), ("b", 1e-3)):
        measure_records.add_record(session, make.timed(task_id, trace, secs))
    return task_id


@pytest.mark.parametrize(("top", "n_left_out"), [(None, 2), (1, 1), (9, 2)])
def test_a_task_that_cannot_be_written_is_left_out_alone(
    session: Session, exporter: Exporter, lines: list[str], top: int | None, n_left_out: int
) -> None:
    """Its records are counted with the reason, and other tasks are written."""
    for workload in ("unknown", "w1"):
        write(exporter, tuned(session, workload), top)

    assert exporter.skipped == {"the task cannot be written: its IR is of another time": n_left_out}
    assert exporter.n_records == len(lines) == n_left_out
    assert {ansor.parse(line).workload for line in lines} == {"\x00ir-w1"}


def test_workloads_of_several_targets_have_a_remark(session: Session, exporter: Exporter) -> None:
    """A reader of the log may use the records of one target for another."""
    for workload, n_cores in (("w0", 2), ("w1", 2), ("w1", 4), ("w1", 8)):
        write(exporter, tuned(session, workload, n_cores))

    ((note, n_workloads),) = exporter.notes.items()
    assert "records of several targets or devices" in note
    assert n_workloads == 1

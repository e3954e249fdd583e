"""Logs: export and import of measure records as JSON lines."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from sqlalchemy import Select, exc, func, select
from sqlalchemy.orm import Session

from records.errors import BadLog
from records.logs import log_lines
from records.logs.log_import import Importer
from records.models import BestRecord, MeasureFeature, MeasureRecord, Target, Task, Workload

_CHUNK = 500
_COPIED_COLUMNS = (
    "trace",
    "trace_hash",
    "module_hash",
    "run_secs",
    "latency",
    "clock_factor",
    "error_kind",
    "error_text",
    "verified",
    "confirmed_secs",
    "confirmed_factor",
    "conditions",
    "worker",
    "origin",
)


_RECORDS = (
    select(
        *MeasureRecord.__table__.c,
        Task.workload_id,
        Task.target_id,
        MeasureFeature.features,
        BestRecord.latency.label("best_latency"),
        BestRecord.confirmed.label("best_confirmed"),
    )
    .select_from(MeasureRecord)
    .join(Task, Task.id == MeasureRecord.task_id)
    .outerjoin(MeasureFeature, MeasureFeature.record_id == MeasureRecord.id)
    .outerjoin(BestRecord, BestRecord.record_id == MeasureRecord.id)
    .order_by(MeasureRecord.id)
)


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Attributes:
        n_added: Number of records added.
        n_known: Number of records that the database already had.
        n_bad: 1 if the last line was cut off before its newline, else 0.
        n_refused: Number of records left out, because their workload is named like another one.
        refusals: Reason for each such workload.
    """

    n_added: int
    n_known: int
    n_bad: int
    n_refused: int = 0
    refusals: tuple[str, ...] = ()


class Export:
    """An export in pages, each of which may be read in a transaction of its own.

    Records are written the oldest first, each after the workload and target that it uses. Jobs
    and picks are left out, because they mean nothing in another database. Records that are stored
    after the first page was read are left out as well, so that an export ends.

    Args:
        target_id: The only target to export; None for all.

    Attributes:
        n_records: Number of records written.
    """

    def __init__(self, target_id: int | None = None) -> None:
        self.n_records = 0
        self._target_id = target_id
        self._last = 0
        self._until: int | None = None
        self._targets: dict[int, str] = {}
        self._workloads: dict[int, tuple[str, str]] = {}

    def write_page(self, session: Session, stream: IO[str], limit: int = _CHUNK) -> bool:
        """Write at most ``limit`` records; return False after the last page.

        Args:
            session: The transaction, which may be read-only.
            stream: Destination of the lines.
            limit: Maximum number of records.
        """
        if self._until is None:
            self._until = session.scalar(select(func.max(MeasureRecord.id))) or 0
            stream.write(log_lines.header())
        rows = session.execute(self._page(limit)).all()
        for row in rows:
            self._write(session, stream, row)
        return len(rows) == limit

    def _page(self, limit: int) -> Select[Any]:
        stmt = _RECORDS.where(MeasureRecord.id > self._last, MeasureRecord.id <= self._until)
        if self._target_id is not None:
            stmt = stmt.where(Task.target_id == self._target_id)
        return stmt.limit(limit)

    def _write(self, session: Session, stream: IO[str], row: Any) -> None:
        if row.target_id not in self._targets:
            target = session.get_one(Target, row.target_id)
            fields = {
                "fingerprint": target.fingerprint,
                "spec": target.spec,
                "device": target.device,
            }
            stream.write(log_lines.dump({"kind": "target", **fields}))
            self._targets[row.target_id] = target.fingerprint
        if row.workload_id not in self._workloads:
            self._workloads[row.workload_id] = _write_workload(session, stream, row.workload_id)
        names = (self._targets[row.target_id], *self._workloads[row.workload_id])
        stream.write(log_lines.dump(_record_fields(row, *names)))
        self._last = row.id
        self.n_records += 1


def export(session: Session, stream: IO[str], target_id: int | None = None) -> int:
    """Write records in one transaction, see :class:`Export`; return their number."""
    pages = Export(target_id)
    while pages.write_page(session, stream):
        pass
    return pages.n_records


def check(stream: Iterable[str]) -> None:
    """Check every line of a log, without a database.

    Raises:
        BadLog: If it is not a log, has a newer version, or contains a malformed line.
    """
    read = _Reading()
    with read.reporting():
        for line in read.lines(stream):
            log_lines.check(line)


def import_(session: Session, stream: Iterable[str], *, trusted: bool = False) -> ImportReport:
    """Read a log into the database, skipping records that the database already has.

    The records are claims: they belong to a target of their own and are not verified, until
    they are measured here; see :mod:`records.logs.imported`.

    Those of a trusted log are taken as measured: a record flagged as best in the log becomes the
    best here if it is new or newly confirmed, and strictly faster, and a known record without
    confirmation samples takes those of the log.

    A workload whose name is not that of its IR is refused with its records, and all else is read.

    Args:
        session: The transaction; roll it back if this raises.
        stream: The lines, such as an open text file.
        trusted: True for a log that was measured and kept by those who run this database.

    Raises:
        BadLog: If it is not a log, has a newer version, or contains a malformed line.
    """
    importer, read = Importer(session, trusted=trusted), _Reading()
    with read.reporting():
        for line in read.lines(stream):
            importer.add(line)
    importer.add_totals()
    importer.choose_bests()
    return ImportReport(
        importer.n_added, importer.n_known, read.n_bad, importer.n_refused, tuple(importer.refusals)
    )


@dataclass
class _Reading:
    """Lines of a log while they are read.

    Attributes:
        number: Number of the line that is read, from 1.
        n_bad: 1 if the last line was cut off, else 0.
    """

    number: int = 0
    n_bad: int = 0

    def lines(self, stream: Iterable[str]) -> Iterator[str]:
        """Yield the lines after the header, without one that was cut off."""
        for self.number, line in enumerate(stream, 1):
            if self.number == 1:
                log_lines.check_header(line)
            elif line.endswith("\n") or log_lines.is_whole(line):
                yield line
            else:
                self.n_bad = 1
        if self.number == 0:
            raise ValueError("the file is empty; a log starts with its format and version")

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Name the line in errors that its content caused.

        Raises:
            BadLog: In place of such an error.
        """
        try:
            yield
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadLog(max(self.number, 1), " ".join(str(error).split())) from error
        except (exc.IntegrityError, exc.DataError) as error:
            raise BadLog(self.number, " ".join(str(error.orig).split())) from error


def _record_fields(row: Any, target: str, workload: str, engine: str) -> dict[str, Any]:
    best = {"latency": row.best_latency, "confirmed": row.best_confirmed}
    return {name: getattr(row, name) for name in _COPIED_COLUMNS} | {
        "kind": "record",
        "workload": workload,
        "engine": engine,
        "target": target,
        "max_error": log_lines.pack_error(row.max_error),
        "created": row.created.isoformat(),
        "features": log_lines.pack(row.features),
        "best": None if row.best_latency is None else best,
    }


def _write_workload(session: Session, stream: IO[str], workload_id: int) -> tuple[str, str]:
    workload = session.get_one(Workload, workload_id)
    fields = {name: getattr(workload, name) for name in ("hash", "engine", "name", "flop")}
    ir = log_lines.pack(workload.ir)
    stream.write(log_lines.dump({"kind": "workload", "ir": ir, **fields}))
    return workload.hash, workload.engine

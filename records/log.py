"""Logs: export and import of measure records as JSON lines."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any

from sqlalchemy import exc, select
from sqlalchemy.orm import Session

from records import log_lines
from records.errors import BadLog
from records.log_import import Importer
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
)


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Attributes:
        n_added: Number of records added.
        n_known: Number of records that the database already had.
        n_bad: 1 if the last line was cut off before its newline, else 0.
    """

    n_added: int
    n_known: int
    n_bad: int


def export(session: Session, stream: IO[str], target_id: int | None = None) -> int:
    """Write records, the oldest first, each after the workload and target that it uses.

    Jobs and picks are left out, because they mean nothing in another database. Memory use
    does not grow with the number of records.

    Args:
        session: The transaction, which may be read-only.
        stream: Destination of the lines.
        target_id: The only target to export; None for all.

    Returns:
        Number of records written.
    """
    stmt = (
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
        .execution_options(yield_per=_CHUNK)
    )
    if target_id is not None:
        stmt = stmt.where(Task.target_id == target_id)
    stream.write(log_lines.header())
    targets: dict[int, str] = {}
    workloads: dict[int, tuple[str, str]] = {}
    n_records = 0
    for row in session.execute(stmt):
        if row.target_id not in targets:
            targets[row.target_id] = _write_target(session, stream, row.target_id)
        if row.workload_id not in workloads:
            workloads[row.workload_id] = _write_workload(session, stream, row.workload_id)
        names = (targets[row.target_id], *workloads[row.workload_id])
        stream.write(log_lines.dump(_record_fields(row, *names)))
        n_records += 1
    return n_records


def import_(session: Session, stream: Iterable[str]) -> ImportReport:
    """Read a log into the database, skipping records that the database already has.

    A record flagged as best in the log becomes the best here if it is new or newly confirmed,
    and strictly faster. A known record without confirmation samples takes those of the log.

    Args:
        session: The transaction; roll it back if this raises.
        stream: The lines, such as an open text file.

    Raises:
        BadLog: If it is not a log, has a newer version, or contains a malformed line.
    """
    importer = Importer(session)
    number, n_bad = 0, 0
    try:
        for number, line in enumerate(stream, 1):
            if number == 1:
                log_lines.check_header(line)
            elif line.endswith("\n") or log_lines.is_whole(line):
                importer.add(line)
            else:
                n_bad = 1
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadLog(max(number, 1), " ".join(str(error).split())) from error
    except (exc.IntegrityError, exc.DataError) as error:
        raise BadLog(number, " ".join(str(error.orig).split())) from error
    if number == 0:
        raise BadLog(1, "the file is empty; a log starts with its format and version")
    importer.add_totals()
    importer.choose_bests()
    return ImportReport(importer.n_added, importer.n_known, n_bad)


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


def _write_target(session: Session, stream: IO[str], target_id: int) -> str:
    target = session.get_one(Target, target_id)
    fields = {"fingerprint": target.fingerprint, "spec": target.spec, "device": target.device}
    stream.write(log_lines.dump({"kind": "target", **fields}))
    return target.fingerprint


def _write_workload(session: Session, stream: IO[str], workload_id: int) -> tuple[str, str]:
    workload = session.get_one(Workload, workload_id)
    fields = {name: getattr(workload, name) for name in ("hash", "engine", "name", "flop")}
    ir = log_lines.pack(workload.ir)
    stream.write(log_lines.dump({"kind": "workload", "ir": ir, **fields}))
    return workload.hash, workload.engine

"""Logs: export and import of measure records as JSON lines."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from sqlalchemy import exc, func, select, update
from sqlalchemy.orm import Session

from records import bests, targets
from records.errors import BadLog, WrongName
from records.logs import imported, log_lines
from records.models import BestRecord, MeasureFeature, MeasureRecord, Target, Task, Workload
from records.storage.upsert import insert, insert_new
from records.tasks import NewWorkload, ensure_task, ensure_workload
from records.tuning import aggregates
from records.tuning.aggregates import RecordTotals

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
        stmt = _RECORDS.where(MeasureRecord.id > self._last, MeasureRecord.id <= self._until)
        if self._target_id is not None:
            stmt = stmt.where(Task.target_id == self._target_id)
        rows = session.execute(stmt.limit(limit)).all()
        for row in rows:
            self._write(session, stream, row)
        return len(rows) == limit

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
            workload = session.get_one(Workload, row.workload_id)
            fields = {name: getattr(workload, name) for name in ("hash", "engine", "name", "flop")}
            ir = log_lines.pack(workload.ir)
            stream.write(log_lines.dump({"kind": "workload", "ir": ir, **fields}))
            self._workloads[row.workload_id] = workload.hash, workload.engine
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


@dataclass
class Importer:
    """State of an import: ids of the names in the log, totals, and candidates for best records.

    Attributes:
        trusted: True to take the records as measured, False to store them as claims.
    """

    session: Session
    trusted: bool = False
    n_added: int = 0
    n_known: int = 0
    n_refused: int = 0
    refusals: list[str] = field(default_factory=list)
    refused_workloads: set[tuple[str, str]] = field(default_factory=set)
    target_ids: dict[str, int] = field(default_factory=dict)
    measured_ids: dict[str, int | None] = field(default_factory=dict)
    claimed: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    workload_ids: dict[tuple[str, str], int] = field(default_factory=dict)
    task_ids: dict[tuple[int, int], int] = field(default_factory=dict)
    flagged: dict[int, tuple[float, int, bool] | None] = field(default_factory=dict)
    fastest: dict[int, tuple[float, int, bool]] = field(default_factory=dict)
    totals: dict[int, RecordTotals] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Store one line after the header.

        Raises:
            ValueError: If the line is malformed or refers to something not yet defined.
        """
        kind, fields = log_lines.parse(line)
        if kind == "target":
            self._add_target(**fields)
        elif kind == "workload":
            fields |= {"ir": log_lines.unpack(fields["ir"]), "flop": float(fields["flop"])}
            # Store a workload; if it is named like another one, it and its records are refused.
            new = NewWorkload(**fields)
            try:
                self.workload_ids[new.hash, new.engine] = ensure_workload(self.session, new).id
            except WrongName as error:
                self.refused_workloads.add((new.hash, new.engine))
                self.refusals.append(str(error))
        elif (fields["workload"], fields["engine"]) in self.refused_workloads:
            self.n_refused += 1
        else:
            self._add_record(fields)

    def add_totals(self) -> None:
        """Add the new records to the totals of their tasks."""
        aggregates.add_to_imported(self.session, self.totals)

    def choose_bests(self) -> None:
        """Offer the flagged record of each task, or the fastest where the log flags none."""
        offers = []
        for task_id in self.flagged.keys() | self.fastest.keys():
            best = self.flagged.get(task_id, self.fastest.get(task_id))
            if best is not None:
                latency, record_id, confirmed = best
                offers.append(bests.Offer(task_id, record_id, latency, confirmed))
        bests.offer(self.session, offers)

    def _add_target(self, fingerprint: str, spec: str, device: dict[str, Any]) -> None:
        if fingerprint != targets.fingerprint(spec, device):
            raise ValueError(f"fingerprint {fingerprint} does not match its spec and device")
        if not self.trusted:
            self.measured_ids[fingerprint] = imported.find_target(self.session, spec, device)
            self.claimed[fingerprint] = (spec, imported.claimed_device(device))
            return
        self.target_ids[fingerprint] = targets.ensure_target(self.session, spec, device).id

    def _add_record(self, fields: dict[str, Any]) -> None:
        columns = log_lines.record_columns(fields)
        flag = log_lines.best_flag(fields)
        if not self.trusted:
            flag, columns["verified"] = None, False
            if self._is_measured(fields):
                self.n_known += 1
                return
        workload_id = self.workload_ids.get((fields["workload"], fields["engine"]))
        # The target of claims is stored with the first of them.
        fingerprint = fields["target"]
        if fingerprint not in self.target_ids and fingerprint in self.claimed:
            target = targets.ensure_target(self.session, *self.claimed[fingerprint])
            self.target_ids[fingerprint] = target.id
        target_id = self.target_ids.get(fingerprint)
        if workload_id is None or target_id is None:
            raise ValueError("a record comes before its workload or target")
        key = (workload_id, target_id)
        if key not in self.task_ids:
            self.task_ids[key] = ensure_task(self.session, *key).id
        task_id = self.task_ids[key]
        record_id = insert_new(self.session, MeasureRecord, {"task_id": task_id, **columns})
        if record_id is None:
            self.n_known += 1
            record_id = self._confirm_known(task_id, columns)
        else:
            self.n_added += 1
            self.totals.setdefault(task_id, RecordTotals()).add(columns)
            features = fields["features"]
            if features is not None:
                row = {"record_id": record_id, "features": log_lines.unpack(features)}
                self.session.execute(insert(self.session, MeasureFeature).values(**row))
            if columns["verified"]:
                timed = (columns["latency"], record_id, False)
                self.fastest[task_id] = min(timed, self.fastest.get(task_id, timed))
        if flag is not None:
            self.flagged[task_id] = None if record_id is None else (flag[0], record_id, flag[1])

    def _is_measured(self, fields: dict[str, Any]) -> bool:
        """Return whether the target that a claim is about has a record of the trace itself."""
        target_id = self.measured_ids.get(fields["target"])
        workload_id = self.workload_ids.get((fields["workload"], fields["engine"]))
        if target_id is None or workload_id is None:
            return False
        stmt = select(MeasureRecord.id).join(Task, Task.id == MeasureRecord.task_id)
        known = stmt.where(
            Task.workload_id == workload_id,
            Task.target_id == target_id,
            MeasureRecord.trace_hash == fields["trace_hash"],
        )
        return self.session.scalar(known.limit(1)) is not None

    def _confirm_known(self, task_id: int, columns: dict[str, Any]) -> int | None:
        """Return the id of a known record if the log confirms it for the first time."""
        if columns["confirmed_secs"] is None:
            return None
        confirmed: int | None = self.session.scalar(
            update(MeasureRecord)
            .where(
                MeasureRecord.task_id == task_id,
                MeasureRecord.trace_hash == columns["trace_hash"],
                MeasureRecord.verified,
                MeasureRecord.confirmed_secs.is_(None),
            )
            .values({name: columns[name] for name in ("confirmed_secs", "confirmed_factor")})
            .returning(MeasureRecord.id)
        )
        return confirmed

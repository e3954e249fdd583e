"""Storage of the lines of a log, and the choice of best records at its end."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from records import bests, targets
from records.errors import WrongName
from records.logs import imported, log_lines
from records.models import MeasureFeature, MeasureRecord, Task
from records.storage.upsert import insert, insert_new
from records.tasks import NewWorkload, ensure_task, ensure_workload
from records.tuning import aggregates
from records.tuning.aggregates import RecordTotals


@dataclass
class Importer:
    """State of an import: ids of the names in the log, totals, and candidates for best records.

    Attributes:
        session: The transaction.
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

"""Export of verified records as a log of another tool."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sqlalchemy.orm import Session

from records.logs import exports
from records.logs.exports import ExportedRecord, ExportedTask
from tuner.context import Context
from tuner.engines.log_base import TraceBatch, WorkloadText
from tuner.errors import TargetError, WorkError
from tuner.tuning_logs.formats import FORMATS, Writer
from tuner.tuning_logs.trace_replay import submit
from tuner.workers.base import CallTimeout
from tuner.workers.confinement.memory import builder_count
from tuner.workers.factory import builder_pool
from tuner.workers.pool import Pool

_BATCH = 128
_TIMEOUT_SECS = 120.0
_SEVERAL = (
    "it has records of several targets or devices, of which TVM may use any: "
    "export one target at a time"
)

Watcher = Callable[[int], None]


@dataclass(frozen=True)
class ExportRequest:
    """The selection of records to export.

    Attributes:
        target_id: The only target to export; None for all.
        top: Maximum number of records per task, the best first; None for all.
    """

    format: str
    target_id: int | None = None
    top: int | None = None


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        n_records: Number of records written.
        n_unverified: Number of records left out because they failed or were not verified.
        skipped: For each reason the number of records that cannot be written.
        notes: For each remark the number of workloads that it applies to.
    """

    n_records: int
    n_unverified: int
    skipped: Mapping[str, int]
    notes: Mapping[str, int]


def export_log(
    context: Context, request: ExportRequest, writer: Writer, watcher: Watcher
) -> Exported:
    """Write the verified records of an engine, in constant memory.

    Args:
        context: Settings and database.
        request: Selection of the records.
        writer: Writer of the lines.
        watcher: Function that receives the number of records written so far.

    Raises:
        RequestError: If the engine is not installed.
    """
    form = FORMATS[request.format]
    engine, settings = form.module, form.settings(context.settings)
    with builder_pool(settings, builder_count(settings)) as pool, context.readers() as session:
        exporter = Exporter(session, engine, pool, writer)
        task_ids = exports.tasks_of_engine(session, engine, request.target_id)
        for task_id in task_ids:
            exporter.write(exports.exported_task(session, task_id), request.top)
            watcher(exporter.n_records)
        n_unverified = exports.count_unverified(session, task_ids)
    return Exported(exporter.n_records, n_unverified, exporter.skipped, exporter.notes)


@dataclass
class Exporter:
    """Writes traces by an engine in batches, and counts the results."""

    session: Session
    engine: str
    pool: Pool
    writer: Writer
    n_records: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    _n_targets: Counter[int] = field(default_factory=Counter)

    def write(self, task: ExportedTask, top: int | None) -> None:
        """Write the records of a task in all forms of its workload, if it can be written."""
        n_verified = exports.count_verified(self.session, task.task_id)
        if not n_verified:
            return
        try:
            target = self._call("write_target", task.spec)
            forms: list[WorkloadText] = self._call("write_workload", task.ir)
        except (TargetError, WorkError, CallTimeout) as error:
            self.skipped[f"the task cannot be written: {error}"] += min(
                n_verified, top or n_verified
            )
            return
        self._n_targets[task.workload_id] += 1
        if self._n_targets[task.workload_id] == 2:
            self.notes[_SEVERAL] += 1
        for form in forms:
            if form.note:
                self.notes[form.note] += 1
            self.writer.write_task(form, target)
            records = exports.verified(self.session, task.task_id, top)
            while batch := list(islice(records, _BATCH)):
                self._write(form, task.spec, batch)

    def _write(self, form: WorkloadText, spec: str, records: list[ExportedRecord]) -> None:
        batch = TraceBatch(form.ir, spec, tuple(record.trace for record in records))
        replays = submit(self.pool, self.engine, "write_traces", batch)
        for record, trace in zip(records, replays.results(), strict=True):
            if trace.problem:
                self.skipped[trace.problem] += 1
            else:
                self.writer.write_record(record, trace.text)
                self.n_records += not form.note

    def _call(self, function: str, *args: Any) -> Any:
        return self.pool.call(self.engine, function, *args, timeout_secs=_TIMEOUT_SECS)

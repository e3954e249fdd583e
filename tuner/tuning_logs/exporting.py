"""Writing verified records as a log of another tool."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sqlalchemy.orm import Session

from records import exports
from records.exports import ExportedRecord, ExportedTask
from tuner.context import Context
from tuner.engines.log_base import TraceBatch, WorkloadText
from tuner.errors import TargetError, WorkError
from tuner.tuning_logs.formats import FORMATS
from tuner.tuning_logs.replaying import submit
from tuner.tuning_logs.writers import Writer
from tuner.workers.base import CallTimeout
from tuner.workers.pool import Pool
from tuner.workers.pools import builder_pool

_BATCH = 128
_TIMEOUT_SECS = 120.0
_SEVERAL = "it has records of several targets or devices, of which TVM may use any: --target-id"

Watcher = Callable[[int], None]


@dataclass(frozen=True)
class ExportRequest:
    """What to write.

    Attributes:
        format: The name of the format.
        target_id: Only records of this target; None for all.
        top: Only so many of each task, the best first; None for all.
    """

    format: str
    target_id: int | None = None
    top: int | None = None


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        n_records: Lines of records.
        n_unverified: Records that were left out: they failed, or were compared with nothing.
        skipped: For each reason how many records cannot be written.
        notes: For each thing that is to be known of workloads, how many it is true of.
    """

    n_records: int
    n_unverified: int
    skipped: Mapping[str, int]
    notes: Mapping[str, int]


def export_log(
    context: Context, request: ExportRequest, writer: Writer, watcher: Watcher
) -> Exported:
    """Write the verified records of an engine, in memory that does not grow with them.

    Args:
        context: Settings and database.
        request: Which records.
        writer: Puts the lines together.
        watcher: Told of the records so far.

    Raises:
        RequestError: If the engine is not installed.
    """
    form = FORMATS[request.format]
    engine, settings = form.module, form.settings(context.settings)
    with builder_pool(settings, settings.n_builders) as pool, context.readers() as session:
        exporter = Exporter(session, engine, pool, writer)
        task_ids = exports.tasks_of_engine(session, engine, request.target_id)
        for task_id in task_ids:
            exporter.write(exports.exported_task(session, task_id), request.top)
            watcher(exporter.n_records)
        n_unverified = exports.count_unverified(session, task_ids)
    return Exported(exporter.n_records, n_unverified, exporter.skipped, exporter.notes)


@dataclass
class Exporter:
    """Has an engine write traces, a batch at a time, and counts what becomes of them."""

    session: Session
    engine: str
    pool: Pool
    writer: Writer
    n_records: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    _n_targets: Counter[int] = field(default_factory=Counter)

    def write(self, task: ExportedTask, top: int | None) -> None:
        """Write the records of a task, if it has any and can be written, in all its forms."""
        n_verified = exports.count_verified(self.session, task.task_id)
        if not n_verified:
            return
        try:
            target = self._ask("write_target", task.spec)
            forms: list[WorkloadText] = self._ask("write_workload", task.ir)
        except (TargetError, WorkError, CallTimeout) as error:
            self.skipped[f"the task cannot be written: {error}"] += min(
                n_verified, top or n_verified
            )
            return
        self._count_targets(task.workload_id)
        for form in forms:
            if form.note:
                self.notes[form.note] += 1
            self.writer.write_task(form, target)
            records = exports.verified(self.session, task.task_id, top)
            while batch := list(islice(records, _BATCH)):
                self._write(form, task.spec, batch)

    def _count_targets(self, workload_id: int) -> None:
        self._n_targets[workload_id] += 1
        if self._n_targets[workload_id] == 2:
            self.notes[_SEVERAL] += 1

    def _write(self, form: WorkloadText, spec: str, records: list[ExportedRecord]) -> None:
        batch = TraceBatch(form.ir, spec, tuple(record.trace for record in records))
        replays = submit(self.pool, self.engine, "write_traces", batch)
        for record, trace in zip(records, replays.results(), strict=True):
            if trace.problem:
                self.skipped[trace.problem] += 1
            else:
                self.writer.write_record(record, trace.text)
                self.n_records += not form.note

    def _ask(self, function: str, *args: Any) -> Any:
        return self.pool.call(self.engine, function, *args, timeout_secs=_TIMEOUT_SECS)

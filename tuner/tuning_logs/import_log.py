"""Import of a log of another tool into the database, in groups of lines."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import IO

from sqlalchemy.orm import Session, sessionmaker

from records.logs import imported
from records.models import Workload
from tuner.context import Context
from tuner.engines.base import TargetInfo
from tuner.engines.log_base import TraceBatch
from tuner.errors import RequestError
from tuner.tuning.writing.storage_retry import sessions_with_retry
from tuner.tuning_logs import ansor, metaschedule
from tuner.tuning_logs.base import BadLine, Entry, LogImportReport, Skips
from tuner.tuning_logs.files import Line, open_log, read_lines
from tuner.tuning_logs.formats import FORMATS, Format
from tuner.tuning_logs.targets import Targets
from tuner.tuning_logs.trace_replay import Replays, submit
from tuner.tuning_logs.workloads import IncludedWorkloads, NamedWorkloads, Workloads
from tuner.workers.confinement.memory import builder_count
from tuner.workers.factory import builder_pool
from tuner.workers.pool import Pool

# Maximum lines and characters of a group, which is held in memory.
_GROUP_LINES = 512
_GROUP_CHARS = 8 * 2**20
# Maximum lines that one call replays, so that all workers share the lines of a task.
_BATCH_LINES = 64
_TIMEOUT_SECS = 300.0
_PARSERS = {metaschedule.NAME: metaschedule.parse_record, ansor.NAME: ansor.parse}

Numbered = tuple[int, Entry]
# Id of a workload, and canonical JSON of a target.
Task = tuple[int, str]
Watcher = Callable[[int, int], None]


@dataclass(frozen=True)
class ImportRequest:
    """The log to import.

    Attributes:
        file: Name of the file; for a MetaSchedule database its folder, or one of its files.
        target: Target of the records, in the notation of users.
        foreign: True to import records for other targets as well.
    """

    file: str
    format: str
    target: str
    foreign: bool = False


def import_log(
    context: Context, request: ImportRequest, stream: IO[bytes], watcher: Watcher
) -> LogImportReport:
    """Store the records of a log under the target of an unnamed device.

    Each group of lines is committed separately, and known records are skipped, so that an
    interrupted import can be repeated.

    Args:
        context: Settings and database.
        watcher: Function that receives the lines read and records added after each group.

    Raises:
        RequestError: If the log cannot be read, or has no record for the requested target and most
            of its lines are for another; nothing is stored then.
    """
    form = FORMATS[request.format]
    settings = form.settings(context.settings)
    context = replace(context, settings=settings, sessions=sessions_with_retry(context))
    with ExitStack() as stack:
        pool = stack.enter_context(builder_pool(settings, builder_count(settings)))
        here = pool.call(form.module, "describe_target", request.target, timeout_secs=_TIMEOUT_SECS)
        targets = Targets(form.module, pool, here, foreign=request.foreign)
        workloads = _workloads(stack, request, pool, context.sessions)
        importer = Importer(form, pool, context.sessions, here, workloads, targets)
        report = importer.read(stream, _PARSERS[form.name], watcher)
    if not (report.added or report.known) and 2 * targets.n_refused > importer.skips.n_lines:
        raise RequestError(
            f"{request.file} is for target {targets.refused}, not for {here.spec}; request that "
            "target, or include foreign records; nothing was imported"
        )
    return report


def _workloads(
    stack: ExitStack, request: ImportRequest, pool: Pool, sessions: sessionmaker[Session]
) -> Workloads:
    """Open the source of the log's workloads until the stack is closed."""
    form = FORMATS[request.format]
    if form.name == ansor.NAME:
        return NamedWorkloads(form, pool, sessions)
    file = stack.enter_context(open_log(str(metaschedule.files_of(request.file)[0])))
    return IncludedWorkloads(file, form.module, pool, sessions)


@dataclass
class Importer:
    """Stores the lines of a log in groups, and counts the results."""

    form: Format
    pool: Pool
    sessions: sessionmaker[Session]
    here: TargetInfo
    workloads: Workloads
    targets: Targets
    n_added: int = 0
    n_known: int = 0
    n_foreign: int = 0
    n_torn: int = 0
    skips: Skips = field(default_factory=Skips)

    def read(
        self, stream: IO[bytes], parse: Callable[[str], Entry], watcher: Watcher
    ) -> LogImportReport:
        """Store all lines."""
        for group in _groups(read_lines(stream)):
            self._store(self._entries(group, parse))
            watcher(group[-1].number, self.n_added)
        return LogImportReport(
            format=self.form.name,
            added=self.n_added,
            known=self.n_known,
            foreign=self.n_foreign,
            torn=self.n_torn,
            skipped=self.skips.reasons,
        )

    def _entries(self, group: Sequence[Line], parse: Callable[[str], Entry]) -> Iterator[Numbered]:
        for line in group:
            if line.torn:
                self.n_torn = 1
            elif line.problem:
                self.skips.add(line.number, line.problem)
            else:
                try:
                    yield line.number, parse(line.text)
                except BadLine as error:
                    self.skips.add(line.number, str(error))

    def _store(self, entries: Iterable[Numbered]) -> None:
        """Replay the schedules of each task in parallel, and store them in one transaction."""
        by_task: dict[Task, list[Numbered]] = defaultdict(list)
        for number, entry in entries:
            try:
                spec = self.targets.find(entry.target)
                by_task[self.workloads.find(entry.workload), spec].append((number, entry))
            except BadLine as error:
                self.skips.add(number, str(error))
        batches = [
            (task, members[start : start + _BATCH_LINES])
            for task, members in by_task.items()
            for start in range(0, len(members), _BATCH_LINES)
        ]
        replays = self._submit(batches)
        new = [
            (task, list(self._records(members, replayed)))
            for (task, members), replayed in zip(batches, replays, strict=True)
        ]
        with self.sessions.begin() as session:
            for (workload_id, spec), records in new:
                is_here = self.targets.is_here(spec)
                local = (
                    imported.find_target(session, spec, dict(self.here.device)) if is_here else None
                )
                target = imported.target_of(session, spec, self.form.tool)
                n_added = imported.add(session, workload_id, target.id, local, records)
                self.n_added += n_added
                self.n_known += len(records) - n_added
                self.n_foreign += 0 if is_here else len(records)

    def _submit(self, batches: Sequence[tuple[Task, list[Numbered]]]) -> list[Replays]:
        with self.sessions() as session:
            irs = {
                workload_id: session.get_one(Workload, workload_id).ir
                for (workload_id, _), _ in batches
            }
        return [
            submit(
                self.pool,
                self.form.module,
                "read_traces",
                TraceBatch(irs[workload_id], spec, tuple(entry.trace for _, entry in members)),
            )
            for (workload_id, spec), members in batches
        ]

    def _records(
        self, members: Sequence[Numbered], replays: Replays
    ) -> Iterator[imported.LoggedTrial]:
        for (number, entry), trace in zip(members, replays.results(), strict=True):
            if trace.problem:
                self.skips.add(number, trace.problem)
            else:
                yield imported.LoggedTrial(
                    trace=trace.text,
                    module_hash=trace.module_hash,
                    run_secs=entry.run_secs,
                    error_kind=entry.error_kind,
                    error_text=entry.error_text,
                    created=entry.created,
                )


def _groups(lines: Iterator[Line]) -> Iterator[list[Line]]:
    group: list[Line] = []
    n_characters = 0
    for line in lines:
        group.append(line)
        n_characters += len(line.text)
        if len(group) >= _GROUP_LINES or n_characters >= _GROUP_CHARS:
            yield group
            group, n_characters = [], 0
    if group:
        yield group

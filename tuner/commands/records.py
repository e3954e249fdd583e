"""``tuner records``: look at measurements, carry them out and in."""

import errno
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer

from tuner.commands import options

if TYPE_CHECKING:
    from rich.console import Console
    from sqlalchemy.orm import Session

    from records.models import Target

app = typer.Typer(
    help="Look at measurements, and carry them from one database to another.",
    no_args_is_help=True,
)

_MAX_ID = 2**31 - 1
_MAX_SAMPLES = 5
_REPORT_SECS = 1.0
_STANDARD = "-"

WorkloadOption = Annotated[
    str | None,
    typer.Option(
        "--workload", metavar="HASH", help="Only records of this workload.", show_default=False
    ),
]


@app.command("best")
def best(
    workload: WorkloadOption = None,
    job: Annotated[
        int | None, typer.Option(help="Only tasks of this job.", show_default=False)
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the best record of every task: the fastest verified one.

    Confirmed means that the latency was measured again, in turns with its rivals.

    Example:
        tuner records best --job 3
    """
    from tuner.context import open_context

    with open_context(database, data_dir) as context, context.readers() as session:
        _check_workload(session, workload)
        rows = _read_bests(session, workload, job)
        targets = _targets(session, rows)
    if json_output:
        options.print_json({"records": [_with_target(row, targets) for row in rows]})
        return
    _show_bests(rows, targets)


@app.command("list")
def list_records(
    workload: WorkloadOption = None,
    task: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only records of this task.",
            show_default=False,
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only trials that failed.")] = False,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="At most so many.")
    ] = 50,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List measure records, the newest first: their samples, or the error instead.

    Example:
        tuner records list --failed --limit 10
    """
    from tuner.context import open_context

    with open_context(database, data_dir) as context, context.readers() as session:
        _check_workload(session, workload)
        _check_task(session, task)
        rows = _read_records(session, workload, task, failed=failed, limit=limit)
        targets = _targets(session, rows)
    if json_output:
        options.print_json({"records": [_with_target(row, targets) for row in rows]})
        return
    _show_records(rows, targets, limit)


@app.command("export")
def export(
    file: Annotated[
        str, typer.Argument(help="Where to write the log; - is stdout.", show_default=False)
    ],
    target_id: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only records of this target; tuner records best numbers them.",
            show_default=False,
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Write every record to a log of JSON lines, which another database can import.

    The file is complete or not there: it is written beside its place and moved when it is whole.

    Example:
        tuner records export measured.jsonl
    """
    from records import log
    from tuner.commands.interrupts import interruptible
    from tuner.context import open_context
    from tuner.errors import RequestError

    if file == _STANDARD and json_output:
        raise RequestError("--json and - do not go together: both print on stdout")
    with open_context(database, data_dir) as context, context.readers() as session:
        _check_target(session, target_id)
        with interruptible(), _output(file) as stream:
            n_records = log.export(session, cast("IO[str]", _Counter(stream)), target_id)
    if json_output:
        options.print_json({"file": file, "records": n_records})
    else:
        _say(f"exported {n_records} records to {file}", to_stderr=file == _STANDARD)


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(help="The log to read; - is stdin.", show_default=False)],
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Read a log that tuner records export wrote; records that are known are not added again.

    All of it or nothing: a damaged line undoes the import. Only a last line that was cut off is
    passed over, and reported as torn.

    Example:
        tuner records import measured.jsonl
    """
    from records import log
    from records.errors import BadLog
    from tuner.commands.interrupts import interruptible
    from tuner.context import open_context
    from tuner.errors import RequestError

    with interruptible(), _input(file) as stream, open_context(database, data_dir) as context:
        try:
            with context.sessions.begin() as session:
                report = log.import_(session, stream)
        except BadLog as error:
            raise RequestError(f"cannot import {file}: {error}; nothing was kept") from error
    if json_output:
        counts = {"added": report.n_added, "known": report.n_known, "torn": report.n_bad}
        options.print_json({"file": file, **counts})
        return
    torn = ", the last line was torn and left out" if report.n_bad else ""
    _say(f"imported {file}: {report.n_added} records added, {report.n_known} known{torn}")


def _read_bests(session: "Session", workload: str | None, job: int | None) -> list[dict[str, Any]]:
    from sqlalchemy import select

    from records import tasks
    from records.models import BestRecord, MeasureRecord, Task, Workload
    from tuner.commands.table import find_job

    wanted = (
        select(
            BestRecord.record_id.label("record"),
            Task.id.label("task"),
            Workload.hash.label("workload"),
            Workload.name,
            Workload.flop,
            Task.target_id,
            BestRecord.latency.label("latency_secs"),
            BestRecord.confirmed,
            MeasureRecord.created,
        )
        .join(MeasureRecord, MeasureRecord.id == BestRecord.record_id)
        .join(Task, Task.id == BestRecord.task_id)
        .join(Workload, Workload.id == Task.workload_id)
        .order_by(Task.id)
    )
    if workload is not None:
        wanted = wanted.where(Workload.hash == workload)
    if job is not None:
        asked = find_job(session, job)
        ours = tasks.weighted_tasks(session, asked.network_id, asked.target_id)
        wanted = wanted.where(Task.id.in_([task.task_id for task in ours]))
    rows = [dict(row) for row in session.execute(wanted).mappings()]
    for row in rows:
        latency, flop = row["latency_secs"], row.pop("flop")
        row["gflops"] = flop / latency / 1e9 if latency else 0.0
    return rows


def _read_records(
    session: "Session", workload: str | None, task: int | None, *, failed: bool, limit: int
) -> list[dict[str, Any]]:
    from sqlalchemy import select

    from records.models import MeasureRecord, Task, Workload

    wanted = (
        select(
            MeasureRecord.id.label("record"),
            Task.id.label("task"),
            Workload.hash.label("workload"),
            Workload.name,
            Task.target_id,
            MeasureRecord.trace_hash,
            MeasureRecord.latency.label("latency_secs"),
            MeasureRecord.run_secs,
            MeasureRecord.confirmed_secs,
            MeasureRecord.error_kind,
            MeasureRecord.error_text,
            MeasureRecord.verified,
            MeasureRecord.max_error,
            MeasureRecord.worker,
            MeasureRecord.created,
        )
        .join(Task, Task.id == MeasureRecord.task_id)
        .join(Workload, Workload.id == Task.workload_id)
        .order_by(MeasureRecord.id.desc())
        .limit(limit)
    )
    if workload is not None:
        wanted = wanted.where(Workload.hash == workload)
    if task is not None:
        wanted = wanted.where(Task.id == task)
    if failed:
        wanted = wanted.where(MeasureRecord.error_kind.is_not(None))
    return [dict(row) for row in session.execute(wanted).mappings()]


def _targets(session: "Session", rows: Sequence[dict[str, Any]]) -> "dict[int, Target]":
    from records.models import Target

    return {key: session.get_one(Target, key) for key in sorted({r["target_id"] for r in rows})}


def _with_target(row: dict[str, Any], targets: "dict[int, Target]") -> dict[str, Any]:
    target = targets[row["target_id"]]
    described = {"target": target.spec, "device": target.device.get("name")}
    return {**row, **described, "created": row["created"].isoformat()}


def _check_workload(session: "Session", workload: str | None) -> None:
    from sqlalchemy import select

    from records.models import Workload
    from tuner.errors import RequestError

    if workload is None:
        return
    # PostgreSQL refuses NUL and lone surrogates in any text, even one to compare with.
    known = (
        workload.isprintable()
        and session.scalars(select(Workload.id).where(Workload.hash == workload).limit(1)).first()
    )
    if not known:
        raise RequestError(f"no workload {workload!r}; tuner tasks MODEL lists hashes")


def _check_task(session: "Session", task: int | None) -> None:
    from records.models import Task
    from tuner.errors import RequestError

    if task is not None and session.get(Task, task) is None:
        raise RequestError(f"no task {task}; tuner records list shows their numbers")


def _check_target(session: "Session", target_id: int | None) -> None:
    from sqlalchemy import select

    from records.models import Target
    from tuner.errors import RequestError

    known = list(session.scalars(select(Target).order_by(Target.id)))
    if target_id is not None and target_id not in [target.id for target in known]:
        names = "; ".join(f"{target.id} ({_device(target)})" for target in known)
        raise RequestError(f"no target {target_id}; known are {names or 'none yet'}")


def _show_bests(rows: Sequence[dict[str, Any]], targets: "dict[int, Target]") -> None:
    from rich.table import Table
    from rich.text import Text

    from tuner.progress import milliseconds, stdout_console

    table = Table(title="Best records", title_justify="left")
    table.add_column("Workload", no_wrap=True)
    table.add_column("Name")
    for name in ("Target", "Latency (ms)", "GFLOPS", "Record"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Confirmed")
    table.add_column("When", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(row["workload"]),
            Text(row["name"]),
            str(row["target_id"]),
            milliseconds(row["latency_secs"]),
            f"{row['gflops']:.1f}",
            str(row["record"]),
            "yes" if row["confirmed"] else "no",
            _local_time(row),
        )
    console = stdout_console()
    console.print(table)
    _show_targets(console, targets)
    console.print(f"{len(rows)} best records", highlight=False)


def _show_records(rows: Sequence[dict[str, Any]], targets: "dict[int, Target]", limit: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from tuner.progress import stdout_console

    table = Table(title="Measure records", title_justify="left")
    for name in ("Record", "Task", "Target"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Workload", no_wrap=True)
    table.add_column("Name")
    table.add_column("Samples (ms), or error", max_width=48)
    table.add_column("When", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["record"]),
            str(row["task"]),
            str(row["target_id"]),
            Text(row["workload"]),
            Text(row["name"]),
            Text(_outcome(row), "red" if row["error_kind"] else ""),
            _local_time(row),
        )
    console = stdout_console()
    console.print(table)
    _show_targets(console, targets)
    more = "; --limit shows more" if len(rows) == limit else ""
    console.print(f"{len(rows)} records{more}", highlight=False)


def _show_targets(console: "Console", targets: "dict[int, Target]") -> None:
    for key, target in targets.items():
        console.print(
            f"target {key}: {_device(target)}, {target.spec}",
            style="dim",
            highlight=False,
            markup=False,
        )


def _outcome(row: dict[str, Any]) -> str:
    """Say what a trial came to: samples, or the error with its last line."""
    from tuner.progress import milliseconds

    if row["error_kind"] is not None:
        said = (row["error_text"] or "").strip().splitlines()
        return _printable(": ".join([row["error_kind"], *said[-1:]]))
    samples = row["run_secs"]
    shown = " ".join(milliseconds(sample) for sample in samples[:_MAX_SAMPLES])
    more = f" and {len(samples) - _MAX_SAMPLES} more" if len(samples) > _MAX_SAMPLES else ""
    return f"{shown}{more}{'' if row['verified'] else ' (not verified)'}"


def _printable(text: str) -> str:
    """Take out what a terminal would obey: compilers colour what they say."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    return "".join(char if char.isprintable() else " " for char in text)


def _device(target: "Target") -> str:
    return str(target.device.get("name", "an unnamed device"))


def _local_time(row: dict[str, Any]) -> str:
    return f"{row['created'].astimezone():%Y-%m-%d %H:%M}"


def _say(text: str, *, to_stderr: bool = False) -> None:
    from tuner.progress import stderr_console, stdout_console

    console = stderr_console() if to_stderr else stdout_console()
    console.print(text, highlight=False, markup=False, soft_wrap=True)


class _Counter:
    """A stream that tells stderr, now and then, how many records went through it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._n_records = 0
        self._next = time.monotonic() + _REPORT_SECS

    def write(self, text: str) -> int:
        """Write one line of a log."""
        # Quotes inside a JSON string are escaped, so this is never part of one.
        self._n_records += '"kind":"record"' in text
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_SECS
            _say(f"{self._n_records} records so far", to_stderr=True)
        return self._stream.write(text)


@contextmanager
def _output(file: str) -> Iterator[IO[str]]:
    """Open what an export writes: stdout, a device, or a file that appears when it is whole.

    Raises:
        RequestError: If there can be no such file.
        WorkError: If writing fails on the way; nothing is left behind.
    """
    from tuner.errors import RequestError, WorkError

    if file == _STANDARD:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        path, whole = _place(Path(file))
        beside = path.with_name(f".tuner-export-{secrets.token_hex(6)}") if whole else path
        descriptor = os.open(beside, os.O_WRONLY | (os.O_CREAT | os.O_EXCL if whole else 0), 0o666)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(f"cannot write {file}: {reason}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            if whole:
                os.fsync(descriptor)
        if whole:
            beside.replace(path)
    except OSError as error:
        raise WorkError(f"cannot write {file}: {error.strerror}") from error
    finally:
        if whole:
            beside.unlink(missing_ok=True)


def _place(file: Path) -> tuple[Path, bool]:
    """Return where a file really is, and whether to replace it as a whole.

    A link stays, and what it names is replaced; a device or a pipe is written to.

    Raises:
        OSError: If it cannot be written.
        RuntimeError: If links run in a circle.
    """
    path = file.resolve()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return path, path.is_file() or not path.exists()


@contextmanager
def _input(file: str) -> Iterator[IO[str]]:
    """Open what an import reads.

    Raises:
        RequestError: If it cannot be opened.
    """
    from tuner.errors import RequestError

    if file == _STANDARD:
        # Spooled first: an import holds the database's write lock while it reads.
        with tempfile.TemporaryFile("w+b") as spool:
            shutil.copyfileobj(sys.stdin.buffer, spool)
            spool.seek(0)
            with os.fdopen(spool.fileno(), encoding="utf-8", newline="\n", closefd=False) as stream:
                yield stream
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
        with os.fdopen(descriptor, encoding="utf-8", newline="\n") as stream:
            yield stream
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror}") from error

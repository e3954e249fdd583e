"""Records as rows, for people and as JSON."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from sqlalchemy.orm import Session

    from records.models import Target

_MAX_SAMPLES = 5
Row = dict[str, Any]


def read_bests(session: "Session", workload: str | None, job: int | None) -> list[Row]:
    """Return the best record of every task, of one workload or one job if they are named."""
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
        ours = tasks.tasks_of_job(session, asked)
        wanted = wanted.where(Task.id.in_([task.task_id for task in ours]))
    rows = [dict(row) for row in session.execute(wanted).mappings()]
    for row in rows:
        latency, flop = row["latency_secs"], row.pop("flop")
        row["gflops"] = flop / latency / 1e9 if latency else 0.0
    return rows


def read_records(
    session: "Session", workload: str | None, task: int | None, *, failed: bool, limit: int
) -> list[Row]:
    """Return measure records, the newest first, at most ``limit``."""
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


def targets_of(session: "Session", rows: Sequence[Row]) -> "dict[int, Target]":
    """Return the targets that rows belong to, by id."""
    from records.models import Target

    return {key: session.get_one(Target, key) for key in sorted({r["target_id"] for r in rows})}


def with_target(row: Row, targets: "dict[int, Target]") -> Row:
    """Return a row as JSON has it, with its target spelled out."""
    target = targets[row["target_id"]]
    described = {"target": target.spec, "device": target.device.get("name")}
    return {**row, **described, "created": row["created"].isoformat()}


def show_bests(rows: Sequence[Row], targets: "dict[int, Target]") -> None:
    """Print best records as a table."""
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


def show_records(rows: Sequence[Row], targets: "dict[int, Target]", limit: int) -> None:
    """Print measure records as a table; ``limit`` is how many were asked for."""
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
            f"target {key}: {device_name(target)}, {target.spec}",
            style="dim",
            highlight=False,
            markup=False,
        )


def _outcome(row: Row) -> str:
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


def device_name(target: "Target") -> str:
    """Return the name of the device behind a target."""
    return str(target.device.get("name", "an unnamed device"))


def _local_time(row: Row) -> str:
    return f"{row['created'].astimezone():%Y-%m-%d %H:%M}"

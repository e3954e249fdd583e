"""The task scheduler table to paste: CSV, and plain text."""

import csv
import io
from collections.abc import Callable, Sequence

from api.errors import Problem
from tuner.schemas import JobView, TaskView

JSON, CSV, TEXT = "json", "csv", "text"
MEDIA_TYPES = {
    JSON: "application/json",
    CSV: "text/csv; charset=utf-8; header=present",
    TEXT: "text/plain; charset=utf-8",
}
_ACCEPTED = {
    "application/json": JSON,
    "application/*": JSON,
    "text/csv": CSV,
    "text/plain": TEXT,
    "text/*": TEXT,
    "*/*": JSON,
}
_COLUMNS = (
    "id",
    "task",
    "workload",
    "weight",
    "latency_ms",
    "gflops",
    "share_percent",
    "trials",
    "failed",
    "gradient",
    "running",
    "why",
)
_SHOWN = ("ID", "Task", "Weight", "Latency (ms)", "GFLOPS", "Share (%)", "Trials", "Failed")


def negotiate(accept: str | None, wanted: str | None = None) -> str:
    """Choose a format.

    Args:
        accept: The Accept header.
        wanted: A format by name, which wins.

    Raises:
        Problem: If the client accepts none of them.
    """
    if wanted is not None:
        return wanted
    if not accept:
        return JSON
    offers = sorted((_offer(part) for part in accept[:1000].split(",")), key=lambda each: -each[0])
    for quality, media_type in offers:
        if quality > 0 and media_type in _ACCEPTED:
            return _ACCEPTED[media_type]
    raise Problem("not-acceptable", "served are application/json, text/csv and text/plain")


def as_csv(view: JobView) -> bytes:
    """Return a table as CSV, a line a task."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(_COLUMNS)
    for task in view.tasks:
        writer.writerow(
            [
                task.id,
                _cell(task.name),
                task.workload,
                task.weight,
                "" if task.latency_secs is None else f"{task.latency_secs * 1e3:.6g}",
                f"{task.gflops:.6g}",
                f"{task.share * 100:.4g}",
                task.trials,
                task.failed,
                "" if task.gradient is None else f"{task.gradient:.6g}",
                int(task.running),
                _cell(task.last_pick.why) if task.last_pick else "",
            ]
        )
    return stream.getvalue().encode()


def as_text(view: JobView) -> bytes:
    """Return a table as text with aligned columns; ``*`` marks the task that runs."""
    rows = [_SHOWN, *(_shown(task) for task in view.tasks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_SHOWN))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    job, total = view.job, view.job.total_latency_secs
    latency = "unknown yet" if total is None else f"{total * 1e3:.4g} ms"
    limit = "" if job.budget_trials is None else f" of {job.budget_trials}"
    lines += [
        "",
        f"Estimated total latency: {latency}",
        f"Job {job.id} ({job.name}), {job.state}: {job.spent_trials}{limit} trials",
    ]
    if view.last_pick is not None:
        lines.append(f"Last pick: {view.last_pick.task_name}: {view.last_pick.why}")
    return ("\n".join(_clean(line) for line in lines) + "\n").encode()


WRITERS: dict[str, Callable[[JobView], bytes]] = {CSV: as_csv, TEXT: as_text}


def _offer(part: str) -> tuple[float, str]:
    media_type, *parameters = part.split(";")
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                quality = float(value)
            except ValueError:
                quality = 0.0
    return quality, media_type.strip().lower()


def _shown(task: TaskView) -> tuple[str, ...]:
    latency = "-" if task.latency_secs is None else f"{task.latency_secs * 1e3:.4f}"
    return (
        f"{'*' if task.running else ''}{task.id}",
        task.name,
        str(task.weight),
        latency,
        f"{task.gflops:.1f}",
        f"{task.share * 100:.1f}",
        str(task.trials),
        str(task.failed),
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if column == 1 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _cell(text: str) -> str:
    """Keep a spreadsheet from reading a name as a formula."""
    cleaned = _clean(text)
    return f"'{cleaned}" if cleaned[:1] in ("=", "+", "-", "@") else cleaned


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)

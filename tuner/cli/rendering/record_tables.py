"""Tables of measure records and best records for a terminal."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from tuner.cli.console import stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.errors import last_line
from tuner.formatting import (
    local_time,
    milliseconds,
    printable,
    short_name,
    source,
    throughput,
)
from tuner.schemas import BestView, RecordView

if TYPE_CHECKING:
    from rich.console import Console

_MAX_SAMPLES = 5


def show_bests(rows: Sequence[BestView]) -> None:
    """Print best records as a table."""
    table = Grid(
        Column("Task", "number"),
        Column("Workload"),
        Column("Name", "name"),
        Column("Target", "number", 1),
        Column("Latency (ms)", "number"),
        Column("GFLOPS", "number", 2),
        Column("Record", "number"),
        Column("Confirmed", rank=4),
        Column("Origin", rank=3),
        Column("When", rank=5),
        title="Best records",
    )
    for row in rows:
        table.add(
            str(row.task),
            short_name(row.workload),
            row.name,
            str(row.target_id),
            milliseconds(row.latency_secs),
            throughput(row.gflops),
            str(row.record),
            "yes" if row.confirmed else "no",
            source(row.origin, row.variant),
            local_time(row.created),
        )
    console = stdout_console()
    console.print(table)
    _show_targets(console, rows)
    console.print(f"{len(rows)} best records", highlight=False)


def show_records(rows: Sequence[RecordView], limit: int) -> None:
    """Print measure records as a table; ``limit`` is the maximum that was requested."""
    table = Grid(
        Column("Record", "number"),
        Column("Task", "number"),
        Column("Target", "number", 2),
        Column("Workload", rank=1),
        Column("Name", "name"),
        Column("Samples (ms), or error", "prose"),
        Column("Origin", rank=3),
        Column("When", rank=4),
        title="Measure records",
    )
    for row in rows:
        table.add(
            str(row.record),
            str(row.task),
            str(row.target_id),
            short_name(row.workload),
            row.name,
            Text(_outcome(row), "red" if row.error_kind else ""),
            source(row.origin, row.variant),
            local_time(row.created),
        )
    console = stdout_console()
    console.print(table)
    _show_targets(console, rows)
    more = "; --limit shows more" if len(rows) == limit else ""
    console.print(f"{len(rows)} records{more}", highlight=False)


def _show_targets(console: "Console", rows: "Sequence[BestView] | Sequence[RecordView]") -> None:
    targets = {row.target_id: (row.device or "an unnamed device", row.target) for row in rows}
    for number, (device, spec) in sorted(targets.items()):
        console.print(
            f"target {number}: {device}, {spec}", style="dim", highlight=False, markup=False
        )


def _outcome(row: RecordView) -> str:
    """Return the samples of a trial, or its error with the last line of the message."""
    if row.error_kind is not None:
        return _printable(": ".join(filter(None, (row.error_kind, last_line(row.error_text)))))
    samples = row.run_secs or []
    shown = " ".join(milliseconds(sample) for sample in samples[:_MAX_SAMPLES])
    more = f" and {len(samples) - _MAX_SAMPLES} more" if len(samples) > _MAX_SAMPLES else ""
    reasons = ", ".join((row.conditions or {}).get("throttled") or ())
    throttled = f" (throttled: {reasons})" if reasons else ""
    return f"{shown}{more}{'' if row.verified else ' (not verified)'}{throttled}"


def _printable(text: str) -> str:
    """Remove control sequences, with which compilers colour their messages."""
    return printable(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text))

"""Tables of measure records and best records for a terminal."""

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from tuner.cli.console import print_line, stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.errors import last_line
from tuner.formatting import (
    by_variant,
    counted,
    local_time,
    milliseconds,
    plain,
    printable,
    short_name,
    source,
    throughput,
)
from tuner.schemas import BestView, RecordDetails, RecordView

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
    console.print(counted(len(rows), "best record"), highlight=False)


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
    console.print(f"{counted(len(rows), 'record')}{more}", highlight=False)


def show_record(record: RecordDetails, code: Mapping[str, str]) -> None:
    """Print a record, and parts of its code by their names."""
    if record.latency_secs is None:
        outcome, latency = f"failed, {record.error_kind}", ""
    else:
        outcome = "verified" if record.verified else "not verified"
        latency = f"{milliseconds(record.final_secs or record.latency_secs)} ms a call"
        if record.final_secs is not None:
            latency += f" in the finals, {milliseconds(record.latency_secs)} ms in its trial"
        latency += f"; {throughput(record.gflops)} GFLOPS" if record.gflops else ""
    source_of = "imported" if record.is_imported else "of another owner"
    for name, value in (
        ("record", f"{record.record}, {outcome}{', best of its task' if record.is_best else ''}"),
        ("name", by_variant(record.name, record.variant)),
        ("workload", record.workload),
        ("task", str(record.task)),
        ("latency", latency),
        ("samples", _listed(record.run_secs, record.latency_secs)),
        ("finals", _listed(record.confirmed_secs, record.final_secs)),
        ("error", "" if record.max_error is None else f"{record.max_error:.3g} at most"),
        ("origin", record.origin),
        ("job", f"{record.job}, pick {record.pick}" if record.job else source_of),
        ("measured", f"{local_time(record.created)} by {record.worker}"),
        ("conditions", plain(record.conditions) if record.conditions else ""),
        ("device", record.device or ""),
        ("target", record.target),
        ("engine", record.engine),
        ("program", record.module_hash or ""),
        ("trace", record.trace_hash),
    ):
        if value:
            print_line(f"{name:10} {printable(value)}")
    if record.error_text:
        print_line(f"\n{_without_colours(record.error_text)}")
    for part, text in code.items():
        print_line(f"\n{part}:\n{text}" if len(code) > 1 else f"\n{text}")


def _listed(secs: Sequence[float] | None, latency_secs: float | None) -> str:
    """Return samples, and the factor of the device's clock by which the latency differs."""
    if not secs or latency_secs is None:
        return ""
    factor = latency_secs / statistics.median(secs)
    clock = f"; median times {factor:.3f} for the clock" if abs(factor - 1) > 1e-3 else ""
    return f"{' '.join(map(milliseconds, secs))} ms{clock}"


def _show_targets(console: "Console", rows: "Sequence[BestView] | Sequence[RecordView]") -> None:
    targets = {row.target_id: (row.device, row.target) for row in rows}
    for number, (device, spec) in sorted(targets.items()):
        console.print(
            f"target {number}: {device}, {spec}", style="dim", highlight=False, markup=False
        )


def _outcome(row: RecordView) -> str:
    """Return the samples of a trial, or its error with the last line of the message."""
    if row.error_kind is not None:
        return printable(
            _without_colours(": ".join(filter(None, (row.error_kind, last_line(row.error_text)))))
        )
    samples = row.run_secs or []
    shown = " ".join(milliseconds(sample) for sample in samples[:_MAX_SAMPLES])
    more = f" and {len(samples) - _MAX_SAMPLES} more" if len(samples) > _MAX_SAMPLES else ""
    reasons = ", ".join((row.conditions or {}).get("throttled") or ())
    throttled = f" (throttled: {reasons})" if reasons else ""
    return f"{shown}{more}{'' if row.verified else ' (not verified)'}{throttled}"


def _without_colours(text: str) -> str:
    """Remove control sequences, with which compilers colour their messages."""
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)

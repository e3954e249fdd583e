"""What commands say of logs that they read and wrote."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import typer

from tuner.cli.console import print_json, print_line
from tuner.engines.environments import DEFAULT_ENGINE
from tuner.tuning_logs.base import LogImportReport
from tuner.tuning_logs.distill import Distilled
from tuner.tuning_logs.export_log import Exported
from tuner.tuning_logs.formats import FORMATS

_REPORT_SECS = 1.0


def teller(things: str) -> Callable[..., None]:
    """Return what tells stderr, now and then, how many there were so far."""
    last = time.monotonic()

    def tell(count: int, *_: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT_SECS:
            last = time.monotonic()
            print_line(f"{count} {things} so far", to_stderr=True)

    return tell


def tell_import(file: str, report: LogImportReport, *, json_output: bool) -> None:
    """Say what an import did; one that could use no line has failed."""
    if json_output:
        print_json({"file": file, **vars(report), "skipped": _skipped_as_json(report.skipped)})
    else:
        _show_import(file, report)
    if report.skipped and not (report.added or report.known):
        raise typer.Exit(1)


def show_export(file: str, form: str, done: Exported, *, to_stderr: bool) -> None:
    """Say what an export wrote, what it left out and why."""
    left = f"; {done.n_unverified} that are not verified were left out" if done.n_unverified else ""
    print_line(f"exported {done.n_records} records to {file} ({form}){left}", to_stderr=to_stderr)
    for reason, count in done.skipped.items():
        print_line(f"  {count} records were left out: {reason}", to_stderr=to_stderr)
    for note, count in done.notes.items():
        print_line(f"  of {count} workloads: {note}", to_stderr=to_stderr)


def export_as_json(done: Exported) -> dict[str, Any]:
    """Return what ``--json`` prints of an export."""
    return {
        "records": done.n_records,
        "unverified": done.n_unverified,
        "skipped": dict(done.skipped),
        "notes": dict(done.notes),
    }


def distilled_as_json(done: Distilled) -> dict[str, Any]:
    """Return what ``--json`` prints of a log that was distilled."""
    return {
        "records": done.n_kept,
        "tasks": done.n_tasks,
        "torn": done.torn,
        "skipped": _skipped_as_json(done.skips.reasons),
    }


def show_distilled(file: str, out: str, done: Distilled, *, to_stderr: bool) -> None:
    """Say what of a log was kept."""
    kept = f"kept {done.n_kept} records of {done.n_tasks} tasks"
    print_line(f"{kept}, {file} -> {out}{_torn(done.torn)}", to_stderr=to_stderr)
    _show_skipped(done.skips.reasons, to_stderr=to_stderr)


def _show_import(file: str, report: LogImportReport) -> None:
    counts = f"{report.added} records added, {report.known} known"
    foreign = f", {report.foreign} of them of another target" if report.foreign else ""
    print_line(f"imported {file} ({report.format}): {counts}{foreign}{_torn(report.torn)}")
    _show_skipped(report.skipped)
    if report.added:
        asked = f"{_engine(report.format)}{' --foreign' if report.foreign else ''}"
        print_line(f"none is used before it was measured here: tuner records verify{asked}")


def _show_skipped(skipped: Mapping[str, tuple[int, int]], *, to_stderr: bool = False) -> None:
    for reason, (count, first) in sorted(skipped.items(), key=lambda each: each[1][1]):
        lines = f"{count} lines were left out, the first is {first}"
        print_line(f"  {lines}: {reason}", to_stderr=to_stderr)


def _skipped_as_json(skipped: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {"reason": reason, "lines": count, "first_line": first}
        for reason, (count, first) in skipped.items()
    ]


def _engine(form: str) -> str:
    engine = FORMATS[form].engine
    return "" if engine == DEFAULT_ENGINE else f" --engine {engine}"


def _torn(torn: int) -> str:
    return ", the last line was torn and left out" if torn else ""

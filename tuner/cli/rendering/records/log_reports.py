"""Outcomes of importing, exporting and distilling logs, as lines and as JSON."""

from collections.abc import Mapping
from typing import Any

import typer

from tuner.cli.console import print_json, print_line
from tuner.engines.environments import DEFAULT_ENGINE
from tuner.formatting import counted
from tuner.tuning_logs.base import LogImportReport
from tuner.tuning_logs.distill import Distilled
from tuner.tuning_logs.export_log import Exported
from tuner.tuning_logs.formats import FORMATS


def report_import(file: str, report: LogImportReport, verify: str, *, json_output: bool) -> None:
    """Print the outcome of an import.

    Args:
        verify: Command that measures records.

    Raises:
        typer.Exit: If lines were left out and no record was usable.
    """
    if json_output:
        print_json({"file": file, **vars(report), "skipped": _skipped_as_json(report.skipped)})
    else:
        counts = f"{counted(report.added, 'record')} added, {report.known} known"
        foreign = f", {report.foreign} of them of another target" if report.foreign else ""
        print_line(f"imported {file} ({report.format}): {counts}{foreign}{_torn(report.torn)}")
        _show_skipped(report.skipped)
        if report.added:
            flags = f"{_engine_flag(report.format)}{' --foreign' if report.foreign else ''}"
            print_line(f"measure them here before builds use them: {verify}{flags}")
    if report.skipped and not (report.added or report.known):
        raise typer.Exit(1)


def show_export(file: str, form: str, exported: Exported, *, to_stderr: bool) -> None:
    """Print how many records were exported, and the reasons for those left out."""
    n_unverified = exported.n_unverified
    unverified = f"; left out {counted(n_unverified, 'unverified record')}" if n_unverified else ""
    line = f"exported {counted(exported.n_records, 'record')} to {file} ({form}){unverified}"
    print_line(line, to_stderr=to_stderr)
    for reason, count in exported.skipped.items():
        print_line(f"  left out {counted(count, 'record')}: {reason}", to_stderr=to_stderr)
    for note, count in exported.notes.items():
        print_line(f"  of {counted(count, 'workload')}: {note}", to_stderr=to_stderr)


def export_as_json(exported: Exported) -> dict[str, Any]:
    """Return what ``--json`` prints of an export."""
    return {
        "records": exported.n_records,
        "unverified": exported.n_unverified,
        "skipped": dict(exported.skipped),
        "notes": dict(exported.notes),
    }


def distilled_as_json(distilled: Distilled) -> dict[str, Any]:
    """Return what ``--json`` prints of a distilled log."""
    return {
        "records": distilled.n_kept,
        "tasks": distilled.n_tasks,
        "torn": distilled.torn,
        "skipped": _skipped_as_json(distilled.skips.reasons),
    }


def show_distilled(file: str, out: str, distilled: Distilled, *, to_stderr: bool) -> None:
    """Print how many records were kept, and the reasons for the lines left out."""
    kept = f"kept {counted(distilled.n_kept, 'record')} of {counted(distilled.n_tasks, 'task')}"
    print_line(f"{kept}, {file} -> {out}{_torn(distilled.torn)}", to_stderr=to_stderr)
    _show_skipped(distilled.skips.reasons, to_stderr=to_stderr)


def _show_skipped(skipped: Mapping[str, tuple[int, int]], *, to_stderr: bool = False) -> None:
    for reason, (count, first) in sorted(skipped.items(), key=lambda item: item[1][1]):
        lines = f"left out {counted(count, 'line')}, the first is {first}"
        print_line(f"  {lines}: {reason}", to_stderr=to_stderr)


def _skipped_as_json(skipped: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {"reason": reason, "lines": count, "first_line": first}
        for reason, (count, first) in skipped.items()
    ]


def _engine_flag(form: str) -> str:
    engine = FORMATS[form].engine
    return "" if engine == DEFAULT_ENGINE else f" --engine {engine}"


def _torn(torn: int) -> str:
    return ", the torn last line was left out" if torn else ""

"""Reports of tuning, extraction and building as tables and as JSON."""

from collections.abc import Mapping
from typing import Any

from tuner.cli import hints
from tuner.cli.console import print_prose, stdout_console
from tuner.cli.rendering.cache import cache_misses
from tuner.cli.rendering.grid import Column, Grid
from tuner.cli.rendering.json_output import tasks_as_json
from tuner.cli.rendering.library import contents_as_json, coverage, show_programs, summary
from tuner.cli.rendering.records import stale_records
from tuner.cli.rendering.tables import task_table
from tuner.formatting import counted, milliseconds, short_name
from tuner.reporting.reports import BuildReport, ExtractReport, TuneReport


def tuning_as_json(report: TuneReport) -> dict[str, Any]:
    """Return what ``--json`` prints of a job."""
    return {
        "job": report.job,
        "network": report.network,
        "target": report.target,
        "total_latency_secs": report.total_latency_secs,
        "untuned_latency_secs": report.untuned_latency_secs,
        "searched_latency_secs": report.searched_latency_secs,
        "trials": report.trials,
        "measured_now": report.measured_now,
        "secs": report.secs,
        "first_trial_secs": report.first_trial_secs,
        "error": report.error,
        "busy": dict(report.busy),
        "tasks": tasks_as_json(report.tasks),
    }


def show_tuning(report: TuneReport) -> None:
    """Print the table of a job and its estimated latency."""
    console = stdout_console()
    console.print(task_table(report.tasks))
    n_tuned = sum(1 for task in report.tasks if task.latency_secs is not None)
    hint = "; raise the budget for the others" if n_tuned < len(report.tasks) else ""
    print_prose(f"Best records for {n_tuned} of {counted(len(report.tasks), 'task')}{hint}.")
    total, untuned = report.total_latency_secs, report.untuned_latency_secs
    console.print(
        f"Estimated total latency: [bold]{milliseconds(total)} ms[/bold]; "
        f"{counted(report.trials, 'trial')} on these tasks, {report.measured_now} of them now, "
        f"in {report.secs:.0f} s.",
        highlight=False,
    )
    if total is not None and untuned is not None:
        gain = f"tuning made it {untuned / total:.2f} times as fast"
        if untuned < total:  # the first trials are among the candidates
            gain = "the finals, timed later on a slower machine, show no gain"
        print_prose(
            f"Untuned, by the first trial of each task: {milliseconds(untuned)} ms; {gain}."
        )
    searched = report.searched_latency_secs
    if total is not None and searched is not None and total > searched:
        print_prose(
            f"The search had {milliseconds(searched)} ms: the fastest of many trials was partly "
            "lucky, so the finals timed the winners again, in turns."
        )


def tasks_of_network_as_json(report: ExtractReport) -> dict[str, Any]:
    """Return what ``--json`` prints of a network that was split."""
    tasks = [task._asdict() for task in report.tasks]
    for task in tasks if report.definitions else ():
        task["definition"] = report.definitions[task["workload"]]
    fields = {name: value for name, value in vars(report).items() if name != "definitions"}
    return {**fields, "tasks": tasks}


def show_tasks_of_network(report: ExtractReport) -> None:
    """Print the tasks of a network, the notes of the extraction, and definitions if requested."""
    console = stdout_console()
    table = Grid(
        Column("Workload"),
        Column("Name", "name"),
        Column("Calls", "number"),
        Column("MFLOP", "number"),
        title=f"Tasks of {report.network}",
    )
    for task in report.tasks:
        mflop = f"{task.flop / 1e6:,.2f}"
        table.add(short_name(task.workload), task.name, str(task.weight), mflop)
    console.print(table)
    total = sum(task.weight * task.flop for task in report.tasks) / 1e6
    calls = (
        "" if report.kernel_calls is None else f"{counted(report.kernel_calls, 'kernel call')}, "
    )
    console.print(
        f"{counted(len(report.tasks), 'task')}, {calls}{total:,.2f} MFLOP", highlight=False
    )
    for note in report.notes:
        line = f"note: {note}"
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)
    for task in report.tasks if report.definitions else ():
        console.print(f"\n[bold]{short_name(task.workload)}[/bold] {task.name}", highlight=False)
        definition = report.definitions[task.workload]
        console.print(definition, highlight=False, markup=False, soft_wrap=True)


def build_as_json(report: BuildReport) -> dict[str, Any]:
    """Return what ``--json`` prints of a library that was built."""
    manifest = report.manifest
    return {
        "library": str(report.folder),
        "cached": report.cached,
        "secs": report.secs,
        "compile_secs": report.compile_secs,
        "hits": report.n_hits,
        "misses": len(report.steps) - report.n_hits,
        "steps": [{**vars(step), "why": cache_misses.as_json(step.why)} for step in report.steps],
        **contents_as_json(manifest),
        "stale": stale_records.as_json(report.stale),
    }


def show_build(report: BuildReport, options: Mapping[str, object]) -> None:
    """Print the coverage of a library, the use of the cache, and what would improve it.

    Args:
        options: Options of the build that commands on the same model take too, by name.
    """
    console = stdout_console()
    console.print(coverage(report.manifest))
    if (cache_use := _cache_use(report)) is not None:
        console.print(cache_use, highlight=False)
    duration = "" if report.secs is None else f" in {report.secs:.2f} s"
    head = f"{'Cached' if report.cached else 'Built'} {report.folder}{duration}"
    console.print(f"{head}: {summary(report.manifest)}", highlight=False)
    show_programs(report.manifest)
    if report.n_fallbacks:
        tune = hints.command("tune", report.model, options=options)
        note = f"Fallbacks run schedules by rule; tune them with `{tune}`"
        console.print(note, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if report.stale:
        console.print(stale_records.table_of(report.stale))
    n_subgraphs = len(report.manifest.subgraphs)
    fixed = {name: value for name, value in options.items() if name not in ("--bucket", "--mask")}
    verify = hints.command("records verify", report.model, options=fixed, is_local=True)
    for note in stale_records.notes(report.stale, n_subgraphs, verify):
        console.print(note, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _cache_use(report: BuildReport) -> str | None:
    if report.steps:
        saved = sum(step.secs for step in report.steps if step.hit)
        counts = (
            f"{counted(report.n_hits, 'cache hit')}, {len(report.steps) - report.n_hits} compiled"
        )
        return counts + (f"; the hits saved {saved:.1f} s of compiling." if report.n_hits else ".")
    if report.cached and report.compile_secs is not None:
        return f"Cache hit: the whole library, {report.compile_secs:.1f} s of compiling saved."
    return None

"""What tuning, splitting and building came to, here or on a service, as it is reported."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tuner.cli.console import stdout_console
from tuner.cli.rendering import cache_misses, stale_records
from tuner.cli.rendering.json_output import task_views, tasks_as_json
from tuner.cli.rendering.tables import milliseconds, task_table
from tuner.library.manifest import Manifest
from tuner.schemas import JobView, TaskView

if TYPE_CHECKING:
    from tuner.compile.build_library import Built
    from tuner.compile.object_compiler import Step
    from tuner.jobs.preparation import Prepared
    from tuner.jobs.stale_records import StaleBest
    from tuner.tuning.run_local import TuneResult


@dataclass(frozen=True)
class TuneReport:
    """A tuning run that ended; ``error`` says why it failed, if it did.

    ``busy`` is as in :class:`tuner.tuning.run_local.TuneResult`; a service does not say it.
    """

    job: int
    network: str
    target: str
    tasks: Sequence[TaskView]
    total_secs: float | None
    measured_now: int
    secs: float
    first_trial_secs: float | None
    error: str | None = None
    busy: Mapping[str, float] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        """Trials spent on its tasks, by whomever."""
        return sum(task.trials for task in self.tasks)

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it."""
        return {
            "job": self.job,
            "network": self.network,
            "target": self.target,
            "total_latency_secs": self.total_secs,
            "trials": self.trials,
            "measured_now": self.measured_now,
            "secs": self.secs,
            "first_trial_secs": self.first_trial_secs,
            "error": self.error,
            "busy": dict(self.busy),
            "tasks": tasks_as_json(self.tasks),
        }

    def show(self) -> None:
        """Print it for people."""
        console = stdout_console()
        console.print(task_table(self.tasks))
        untuned = sum(1 for task in self.tasks if task.latency_secs is None)
        if untuned:
            console.print(
                f"{untuned} of {len(self.tasks)} tasks got no trial yet; raise the budget."
            )
        console.print(
            f"Estimated total latency: [bold]{milliseconds(self.total_secs)} ms[/bold]; "
            f"{self.trials} trials, {self.measured_now} of them now, in {self.secs:.0f} s.",
            highlight=False,
        )


def tune_report(result: "TuneResult") -> TuneReport:
    """Describe what a run on this machine came to."""
    total = result.snapshot.total_secs
    return TuneReport(
        job=result.job_id,
        network=result.network,
        target=result.target,
        tasks=task_views(result.snapshot),
        total_secs=total if math.isfinite(total) else None,
        measured_now=result.n_measured,
        secs=result.secs,
        first_trial_secs=result.first_trial_secs,
        error=None if result.error is None else str(result.error),
        busy=result.busy,
    )


@dataclass(frozen=True)
class ExtractReport:
    """A network split into tasks: of each its workload, name, weight and operations.

    ``definitions`` say what workloads compute, if that was asked for.
    """

    network: str
    sha256: str
    target: str
    kernel_calls: int | None
    notes: Sequence[str]
    tasks: Sequence[tuple[str, str, int, float]]
    definitions: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it."""
        names = ("workload", "name", "weight", "flop")
        tasks: list[dict[str, Any]] = [dict(zip(names, task, strict=True)) for task in self.tasks]
        for task in tasks if self.definitions else ():
            task["definition"] = self.definitions[task["workload"]]
        rest = {name: value for name, value in vars(self).items() if name != "definitions"}
        return {**rest, "tasks": tasks}

    def show(self) -> None:
        """Print it for people."""
        console = stdout_console()
        table = Table(title=f"Tasks of {self.network}", title_justify="left")
        table.add_column("ID", justify="right")
        table.add_column("Workload", no_wrap=True)
        table.add_column("Task")
        table.add_column("Weight", justify="right")
        table.add_column("MFLOP", justify="right")
        for index, (workload, name, weight, flop) in enumerate(self.tasks):
            table.add_row(str(index), workload, name, str(weight), f"{flop / 1e6:.2f}")
        console.print(table)
        total = sum(weight * flop for _, _, weight, flop in self.tasks) / 1e6
        calls = "" if self.kernel_calls is None else f"{self.kernel_calls} kernel calls, "
        console.print(f"{len(self.tasks)} tasks, {calls}{total:,.2f} MFLOP", highlight=False)
        for note in self.notes:
            console.print(f"note: {note}", style="dim", highlight=False)
        for workload, name, _, _ in self.tasks if self.definitions else ():
            console.print(f"\n[bold]{workload}[/bold] {name}", highlight=False)
            console.print(self.definitions[workload], highlight=False, markup=False, soft_wrap=True)


def extract_report(prepared: "Prepared", definitions: Mapping[str, str]) -> ExtractReport:
    """Describe a network that was split on this machine."""
    return ExtractReport(
        network=prepared.model.name,
        sha256=prepared.model.sha256,
        target=prepared.target.spec,
        kernel_calls=prepared.n_kernel_calls,
        notes=prepared.notes,
        tasks=[(task.workload_hash, task.name, task.weight, task.flop) for task in prepared.tasks],
        definitions=definitions,
    )


def extract_report_of_job(view: JobView) -> ExtractReport:
    """Describe a network that a service split."""
    return ExtractReport(
        network=view.job.network or view.job.name,
        sha256="" if view.split is None else view.split.sha256,
        target=view.job.target or "",
        kernel_calls=None if view.split is None else view.split.kernel_calls,
        notes=() if view.split is None else view.split.notes,
        tasks=[(task.workload, task.name, task.weight, task.flop) for task in view.tasks],
    )


@dataclass(frozen=True)
class BuildReport:
    """A library in a folder; ``cached`` if nothing had to be compiled.

    Attributes:
        folder: Where it is.
        manifest: What it is.
        cached: Whether nothing had to be compiled or linked.
        steps: How the object of each subgraph came about; none if it was cached, or built
            by a service.
        secs: What building it took now; None where a service built it.
        compile_secs: What making all of it takes, in the time of one process.
        stale: Records of other versions, for subgraphs that have none of this one.
        model: What it was built from, as the user named it.
    """

    folder: Path
    manifest: Manifest
    cached: bool
    steps: "Sequence[Step]" = ()
    secs: float | None = None
    compile_secs: float | None = None
    stale: "Sequence[StaleBest]" = ()
    model: str = "MODEL"

    @property
    def n_fallbacks(self) -> int:
        """Subgraphs without a record."""
        return sum(1 for entry in self.manifest.subgraphs if entry.record is None)

    @property
    def n_hits(self) -> int:
        """Subgraphs whose object was in the build cache."""
        return sum(step.hit for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it."""
        files: Mapping[str, str] = self.manifest.files
        return {
            "library": str(self.folder),
            "cached": self.cached,
            "secs": self.secs,
            "compile_secs": self.compile_secs,
            "hits": self.n_hits,
            "misses": len(self.steps) - self.n_hits,
            "steps": [{**vars(step), "why": cache_misses.as_json(step.why)} for step in self.steps],
            "estimated_secs": self.manifest.estimated_secs,
            "tuned": len(self.manifest.subgraphs) - self.n_fallbacks,
            "fallbacks": self.n_fallbacks,
            "programs": [
                {"inputs": program.inputs, "estimated_secs": self.manifest.estimate(program)}
                for program in self.manifest.programs
            ],
            "subgraphs": [vars(entry) for entry in self.manifest.subgraphs],
            "files": dict(files),
            "stale": stale_records.as_json(self.stale),
        }

    def show(self) -> None:
        """Print it for people."""
        console = stdout_console()
        console.print(self._table())
        if self.steps:
            saved = sum(step.secs for step in self.steps if step.hit)
            console.print(
                f"{self.n_hits} cache hits, {len(self.steps) - self.n_hits} compiled"
                + (f"; the hits saved {saved:.1f} s of compiling." if self.n_hits else "."),
                highlight=False,
            )
        elif self.cached and self.compile_secs is not None:
            console.print(
                f"Cache hit: the whole library, {self.compile_secs:.1f} s of compiling saved.",
                highlight=False,
            )
        n_all, estimate = len(self.manifest.subgraphs), self.manifest.estimated_secs
        took = "" if self.secs is None else f" in {self.secs:.2f} s"
        console.print(
            f"{'Cached' if self.cached else 'Built'} {self.folder}{took}: "
            f"{n_all - self.n_fallbacks} of {n_all} subgraphs tuned"
            + (f", estimated {milliseconds(estimate)} ms" if estimate is not None else ""),
            highlight=False,
        )
        if len(self.manifest.programs) > 1:
            self._show_programs()
        if self.n_fallbacks:
            console.print("Fallbacks are slow: tune the network first.", style="yellow")
        if self.stale:
            console.print(stale_records.table_of(self.stale))
        for note in stale_records.notes(self.stale, n_all, self.model):
            console.print(note, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(title="Coverage", title_justify="left")
        for name in ("Workload", "Task", "Calls", "Built from", "Latency (ms)"):
            table.add_column(name, justify="right" if name in ("Calls", "Latency (ms)") else "left")
        for entry in self.manifest.subgraphs:
            missing = entry.record is None
            source = "[yellow]fallback[/yellow]" if missing else f"record {entry.record}"
            latency = milliseconds(entry.latency)
            table.add_row(entry.workload, entry.name, str(entry.n_calls), source, latency)
        return table

    def _show_programs(self) -> None:
        for program in self.manifest.programs:
            shapes = ", ".join(
                f"{name}={'x'.join(map(str, shape))}" for name, (shape, _) in program.inputs.items()
            )
            estimate = self.manifest.estimate(program)
            told = f", estimated {milliseconds(estimate)} ms" if estimate is not None else ""
            stdout_console().print(f"  program {program.entry}: {shapes}{told}", highlight=False)


def build_report(built: "Built", stale: "Sequence[StaleBest]", model: str) -> BuildReport:
    """Describe a library that was built on this machine from what the user calls ``model``."""
    return BuildReport(
        folder=built.folder,
        manifest=built.manifest,
        cached=built.cached,
        steps=built.steps,
        secs=built.secs,
        compile_secs=built.compile_secs,
        stale=stale,
        model=model,
    )

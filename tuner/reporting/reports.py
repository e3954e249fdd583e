"""Reports of tuning, extraction and building, as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from tuner.compile.build_library import BuiltLibrary
from tuner.formatting import (
    built_from,
    counted,
    latency,
    milliseconds,
    short_name,
    tuned_summary,
)
from tuner.jobs.preparation import Prepared
from tuner.jobs.stale_records import StaleBest
from tuner.queries.tasks import view_snapshot
from tuner.schemas import JobView, TaskView
from tuner.tables import Rows, Shown, table
from tuner.tuning.run_local import TuneResult


@dataclass(frozen=True, repr=False)
class TuneReport(Shown):
    """Outcome of one tuning job.

    Attributes:
        job: Id of the job.
        target: Target as canonical JSON.
        tasks: Rows of the task scheduler table at the end.
        total_latency_secs: Estimated latency of the network; None while a task has no best record.
        untuned_latency_secs: The same without tuning; None if unknown, see :class:`JobView`.
        searched_latency_secs: The same after the last round, before the finals.
        measured_now: Trials that this run measured.
        secs: Duration of the run.
        first_trial_secs: Time to the first trial of the run; None without one.
        error: Reason for a failure; None if the job did not fail.
        busy: Share of the run in which each device worked, by device name; empty for a job of
            a service.
    """

    job: int
    network: str
    target: str
    tasks: Rows[TaskView]
    total_latency_secs: float | None
    measured_now: int
    secs: float
    first_trial_secs: float | None
    error: str | None = None
    busy: Mapping[str, float] = field(default_factory=dict)
    untuned_latency_secs: float | None = None
    searched_latency_secs: float | None = None

    @property
    def trials(self) -> int:
        """Trials spent on the tasks by all jobs."""
        return sum(task.trials for task in self.tasks)

    def summary(self) -> str:
        """Return the latency of the job, and what it took."""
        trials = counted(self.trials, "trial")
        took = f"{trials}, {self.measured_now} of them now, in {self.secs:.0f} s"
        reached = latency(self.total_latency_secs, self.untuned_latency_secs)
        failed = f"; failed: {self.error}" if self.error else ""
        return f"job {self.job} of {self.network}: {reached}; {took}{failed}"

    def _table(self) -> str:
        return self.tasks._repr_html_()


class ExtractedTask(NamedTuple):
    """A task of a network; ``flop`` is of one call, ``weight`` the calls in one inference."""

    workload: str
    name: str
    weight: int
    flop: float


@dataclass(frozen=True, repr=False)
class ExtractReport(Shown):
    """A network split into tasks.

    Attributes:
        sha256: Hash of the cleaned model.
        target: Target as canonical JSON.
        kernel_calls: Kernel launches in one inference, tuned or not; None if unknown.
        notes: Notes of the extraction, such as operators that stay untuned.
        tasks: Tasks in the order of the network.
        definitions: IR of each workload as its compiler prints it, by workload hash; empty
            unless it was requested.
    """

    network: str
    sha256: str
    target: str
    kernel_calls: int | None
    notes: Sequence[str]
    tasks: Rows[ExtractedTask]
    definitions: Mapping[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        """Return the number of tasks and their work."""
        mflop = sum(task.weight * task.flop for task in self.tasks) / 1e6
        calls = (
            "" if self.kernel_calls is None else f"{counted(self.kernel_calls, 'kernel call')}, "
        )
        return f"{self.network}: {counted(len(self.tasks), 'task')}, {calls}{mflop:,.2f} MFLOP"

    def _table(self) -> str:
        return table(
            ("Workload", "Name", "Calls", "MFLOP"),
            [
                (short_name(task.workload), task.name, str(task.weight), f"{task.flop / 1e6:,.2f}")
                for task in self.tasks
            ],
        )


@dataclass(frozen=True, repr=False)
class BuildReport(Shown, BuiltLibrary):
    """A library in a folder, for people.

    Attributes:
        stale: Records of other versions, for subgraphs that have none of this version.
        model: The model as the user named it.
    """

    stale: Sequence[StaleBest] = ()
    model: str = "MODEL"

    def summary(self) -> str:
        """Return the folder of the library, its coverage and its estimated latency."""
        n_subgraphs, estimate = len(self.manifest.subgraphs), self.manifest.estimated_secs
        return f"{self.folder}: {tuned_summary(n_subgraphs, self.n_fallbacks, estimate)}"

    def _table(self) -> str:
        rows = [
            (
                short_name(entry.workload),
                entry.name,
                str(entry.n_calls),
                built_from(entry.record, entry.variant),
                milliseconds(entry.latency),
            )
            for entry in self.manifest.subgraphs
        ]
        return table(("Workload", "Name", "Calls", "Built from", "Latency (ms)"), rows)


def report_tuning(result: TuneResult, view: JobView) -> TuneReport:
    """Report a job that ran on this machine, of which ``view`` is the table in the database."""
    return TuneReport(
        job=result.job_id,
        network=result.network,
        target=result.target,
        tasks=Rows(view_snapshot(result.snapshot)),
        measured_now=result.n_measured,
        secs=result.secs,
        first_trial_secs=result.first_trial_secs,
        error=None if result.error is None else str(result.error),
        busy=result.busy,
        **latencies_of(view),
    )


class Latencies(TypedDict):
    """The latencies of a report."""

    total_latency_secs: float | None
    untuned_latency_secs: float | None
    searched_latency_secs: float | None


def latencies_of(view: JobView) -> Latencies:
    """Return the latencies of a report by the table of its job."""
    return Latencies(
        total_latency_secs=view.job.total_latency_secs,
        untuned_latency_secs=view.untuned_latency_secs,
        searched_latency_secs=None if view.last_pick is None else view.last_pick.total_latency_secs,
    )


def report_tasks(prepared: Prepared, definitions: Mapping[str, str]) -> ExtractReport:
    """Report a network that was split on this machine."""
    return ExtractReport(
        network=prepared.model.name,
        sha256=prepared.model.sha256,
        target=prepared.target.spec,
        kernel_calls=prepared.n_kernel_calls,
        notes=prepared.notes,
        tasks=Rows(
            ExtractedTask(task.workload_hash, task.name, task.weight, task.flop)
            for task in prepared.tasks
        ),
        definitions=definitions,
    )

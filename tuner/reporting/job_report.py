"""A job as its database or a service describes it."""

from dataclasses import dataclass

from tuner.formatting import latency, spent
from tuner.schemas import HistoryView, JobView, TaskView
from tuner.tables import Rows, Shown


@dataclass(frozen=True, repr=False)
class JobReport(Shown):
    """A job when it was read.

    Attributes:
        view: Table of the job: its state, its tasks, its forecast.
        history: Latency and trials after its rounds.
    """

    view: JobView
    history: HistoryView

    @property
    def id(self) -> int:
        """Number of the job."""
        return self.view.job.id

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.view.job.network or self.view.job.name

    @property
    def total_latency_secs(self) -> float | None:
        """Estimated latency of the network, seconds; None while a task has no best record."""
        return self.view.job.total_latency_secs

    @property
    def tasks(self) -> Rows[TaskView]:
        """Rows of the task scheduler table."""
        return Rows(self.view.tasks)

    def summary(self) -> str:
        """Return the state of the job, its latency and what it spent."""
        took = latency(self.total_latency_secs, self.view.untuned_latency_secs)
        job = self.view.job
        return f"job {job.id} of {self.network}, {job.state}: {took}; {spent(job)}"

    def _table(self) -> str:
        return self.tasks._repr_html_()

"""Choice of a job's next task, and the forecast by which the job may stop."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from records.picks import NewPick
from scheduler import allocators
from scheduler.allocator import GreedyAllocator
from scheduler.forecasts.outlook import Outlook, look_ahead, trials_until
from tuner.jobs.objective import objective_of
from tuner.jobs.preparation import Prepared
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.tasks.snapshot import JobSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping


class PickChooser:
    """Applies the allocator and the objective of one job to its snapshots.

    Attributes:
        outlook: Forecast of the next minute; None before every task had its first round.
        trials_to_stop: Trials until the forecast gain falls below the job's threshold; None if
            that is not in sight, or the job has no threshold.
    """

    def __init__(self, prepared: Prepared, options: SessionOptions) -> None:
        spec = options.spec
        self._objective = objective_of(spec, prepared)
        settings = options.scheduler or allocators.default_settings(spec.allocator)
        if settings.warmup_trials is None and prepared.target.has_schedules_by_rule:
            # One look at each task shows where the time goes; a search of each would take minutes.
            settings = replace(settings, warmup_trials=1)
        self.settings: Mapping[str, Any] = asdict(settings)
        self._allocator = allocators.make_allocator(
            spec.allocator, self._objective, spec.seed, settings
        )
        self.outlook: Outlook | None = None
        self.trials_to_stop: int | None = None

    def choose(
        self, job_id: int, snapshot: JobSnapshot, *, sequence: int, n_trials: int
    ) -> NewPick | None:
        """Choose the task of the next round.

        Args:
            snapshot: The job's table.
            sequence: Number of picks that the job has made.

        Returns:
            None if every task is exhausted, or no task is expected to lower the objective.
        """
        decision = self._allocator.choose(snapshot.table, sequence=sequence, n_trials=n_trials)
        if decision is None:
            return None
        terms = {"reason": decision.reason, **decision.terms}
        task_id = snapshot.tasks[decision.task].task_id
        return NewPick(job_id, task_id, decision.n_trials, terms)

    def update_outlook(
        self,
        snapshot: JobSnapshot,
        *,
        spent_secs: float,
        n_trials: int,
        stop_below_secs: float | None,
    ) -> None:
        """Forecast what another minute, at least a round, saves of the objective.

        Args:
            snapshot: The job's table.
            spent_secs: Seconds that the job has spent.
            stop_below_secs: Threshold of the job.
        """
        table = snapshot.table
        if table.unseen.any() or not table.measured.any():
            self.outlook = None
            return
        own = sum(snapshot.own)
        trials_per_minute = round(60.0 * own / spent_secs) if spent_secs > 0.0 else 0
        gradient = self._objective.at(table).gradient(table.best_secs)
        step = max(trials_per_minute, n_trials)
        if stop_below_secs is not None:
            self.trials_to_stop = trials_until(table, gradient, step, stop_below_secs)
        self.outlook = look_ahead(table, gradient, step)

    def gains(self, snapshot: JobSnapshot) -> dict[str, float] | None:
        """Return the gain of a round on each task, by task id; None if it cannot be estimated."""
        if not isinstance(self._allocator, GreedyAllocator):
            return None
        gains = self._allocator.gains(snapshot.table)
        pairs = zip(snapshot.tasks, gains.tolist(), strict=True)
        return {str(task.task_id): gain for task, gain in pairs}

"""Status of a tuning job as sessions publish it, and the callbacks that receive it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler.budget import Budget
from scheduler.forecasts.outlook import Outlook
from tuner.tuning.tasks.snapshot import JobSnapshot


@dataclass(frozen=True)
class TuningStatus:
    """One moment of a tuning job.

    Attributes:
        phase: Current activity in words.
        snapshot: The task table as of the last committed record.
        budget: Budget of this run.
        spent_trials: Trials that count against the budget.
        spent_secs: Seconds that the job has spent in all its runs together.
        current: Id of the task of the running round, if any.
        is_measuring_cpu: True while a candidate is being timed on this machine's CPU; a callback
            should then do nothing that takes a core.
        outlook: Forecast of what the next trials save; None before every task had a round.
        trials_to_stop: Trials until the job is forecast to stop; None if no stop is in sight.
    """

    phase: str
    snapshot: JobSnapshot
    budget: Budget
    spent_trials: int
    spent_secs: float
    current: int | None = None
    is_measuring_cpu: bool = False
    outlook: Outlook | None = None
    trials_to_stop: int | None = None


# Receives the status of a job; called many times a second in the thread of the coordinator.
StatusCallback = Callable[[TuningStatus], None]


def _ignore(_value: object) -> None:
    pass


@dataclass(frozen=True)
class TuningCallbacks:
    """Functions that a local tuning run calls in its own thread; each does nothing by default.

    Attributes:
        on_status: Receives the status of each job, many times a second.
        on_note: Receives each remark on the networks before the first trial.
        on_busy: Receives, when the run ends or is interrupted, the share of the time in which
            each device worked, from 0 to 1, by the device's name.
    """

    on_status: StatusCallback = _ignore
    on_note: Callable[[str], None] = _ignore
    on_busy: Callable[[Mapping[str, float]], None] = _ignore

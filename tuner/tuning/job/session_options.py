"""Options of a tuning session: job, search and scheduler."""

from dataclasses import dataclass, field

from scheduler import budget as budgets
from scheduler.allocator import GreedySettings
from scheduler.budget import Budget
from tuner.jobs.preparation import Prepared
from tuner.jobs.spec import TuneSpec
from tuner.settings import request_caps
from tuner.tuning.rounds.search import SearchSettings

# Trials of a round when only time limits the job.
_TIMED_ROUND = 8


@dataclass(frozen=True)
class SessionOptions:
    """Options of a tuning session.

    Attributes:
        spec: Options of the job, with a limit of trials or seconds.
        submission: Submission of the service's job; empty for a job of the command line.
        max_trials_per_round: Largest round that is chosen where the spec names no size.
        scheduler: Settings of the allocator; None for its defaults.
        search: Settings of the search of each round.
        started: Time by the monotonic clock at which the command of this run began, whose seconds
            count from then; None if those of its rounds count.
        command: Command line that started this run, for people; empty if none did.
    """

    spec: TuneSpec
    submission: str = ""
    max_trials_per_round: int = request_caps.DEFAULTS.max_trials_per_round
    scheduler: GreedySettings | None = None
    search: SearchSettings = field(default_factory=SearchSettings)
    started: float | None = None
    command: str = ""

    @property
    def budget(self) -> Budget:
        """Limits of the job."""
        return Budget(self.spec.trials, self.spec.seconds)


def round_size(options: SessionOptions, prepared: Prepared) -> int:
    """Return the trials of a round that the spec names, or choose them by budget and tasks."""
    if options.spec.trials_per_round is not None:
        return options.spec.trials_per_round
    return min(_default_round_size(options.budget, prepared), options.max_trials_per_round)


def _default_round_size(budget: Budget, prepared: Prepared) -> int:
    if budget.trials is None:
        return _TIMED_ROUND
    n_tasks = len(prepared.tasks)
    # A budget of few trials a task reaches every task with smaller rounds.
    most = max(budget.trials // n_tasks, 1)
    return min(budgets.default_trials_per_round(budget.trials, n_tasks), most)

"""Options of a tuning run."""

from dataclasses import dataclass, field

from scheduler import allocators
from scheduler import budget as budgets
from scheduler.allocator import GreedySettings
from scheduler.budget import Budget
from tuner.engines.base import EvaluatorSettings
from tuner.errors import RequestError
from tuner.jobs.goals import Goal
from tuner.jobs.preparation import Prepared
from tuner.jobs.search_settings import SearchSettings

# Trials of a round when only time limits the job.
_TIMED_ROUND = 8
# Where nobody set a limit.
TRIALS_PER_TASK = 64


@dataclass(frozen=True)
class TuneOptions:
    """What a tuning run may spend and how it works.

    Attributes:
        budget: Trials, seconds, or both; what was spent before counts.
        trials_per_round: Trials one pick buys; None chooses by budget and tasks.
        allocator: Name of the allocator.
        goal: What to minimise.
        priority: A job gets twice the device time of one whose priority is 1 lower.
        seed: Seeds the search and the scheduler.
        scheduler: How the allocator goes about its picks; None: as it does by default.
        evaluator: How candidates are timed.
        search: How hard a round searches.
        cost_model: Kind of cost model.
        build_timeout_secs: A build that takes longer is killed.
        least_gain_secs: Stop once a minute more is forecast to save less of the objective.
        submission: Of the service's job that this is; empty for one of the command line.
    """

    budget: Budget
    trials_per_round: int | None = None
    allocator: str = allocators.DEFAULT
    goal: Goal = field(default_factory=Goal)
    priority: int = 0
    seed: int = 0
    scheduler: GreedySettings | None = None
    evaluator: EvaluatorSettings = field(default_factory=EvaluatorSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    cost_model: str = "xgb-ranking"
    build_timeout_secs: float = 60.0
    least_gain_secs: float | None = None
    submission: str = ""


def round_size(budget: Budget, prepared: Prepared) -> int:
    """Choose the trials of a round by the budget and the tasks."""
    if budget.trials is None:
        return _TIMED_ROUND
    n_tasks = len(prepared.tasks)
    # A budget of few trials a task reaches every task with smaller rounds.
    most = max(budget.trials // n_tasks, 1)
    return min(budgets.default_trials_per_round(budget.trials, n_tasks), most)


def default_trials(prepared: Prepared) -> int:
    """Return the trials that a network gets where nobody set a limit."""
    return TRIALS_PER_TASK * len(prepared.tasks)


def make_budget(trials: int | None, secs: float | None) -> Budget:
    """Build a budget from what a user asked for.

    Raises:
        RequestError: If a limit is zero or negative.
    """
    try:
        return Budget(trials, secs)
    except ValueError as error:
        raise RequestError(f"bad budget: {error}") from error

"""Time of a final: what the search leaves to it of a budget in seconds, and its deadline."""

import math
from collections.abc import Callable
from statistics import fmean

from sqlalchemy.orm import Session, sessionmaker

from records.tuning import rounds
from scheduler.budget import Budget
from tuner.tuning.rounds import finals
from tuner.tuning.tasks.snapshot import JobSnapshot

# Largest share of the budget that the search leaves unused.
_MAX_SHARE = 0.2
# Share at which a round that is running ends early.
_CUT_SHARE = 0.15
# Smallest share for which a final runs, if the search or earlier runs of the job used up the rest.
_MIN_SHARE = 0.05


class FinalTime:
    """Seconds of one job that belong to its final.

    Args:
        sessions: Factory of database sessions.
    """

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions
        self._expected_secs = 0.0
        self._estimated_for: float | None = None

    def reserve_secs(self, budget: Budget, spent_secs: float, snapshot: JobSnapshot) -> float:
        """Return the seconds that must be left for another round to begin.

        They are those of the round and of the final, at most a fifth of the budget.

        Args:
            budget: Budget of the job; without a limit in seconds nothing is reserved.
            spent_secs: Seconds that the job has spent.
            snapshot: State of the job.
        """
        if budget.secs is None or spent_secs < (1.0 - _MAX_SHARE) * budget.secs:
            return 0.0
        # The estimate reads the records of all tasks, for a tenth of a second and longer.
        if self._estimated_for != budget.secs:
            self._estimated_for = budget.secs
            self._expected_secs = self._estimate(snapshot)
        return min(self._expected_secs, _MAX_SHARE * budget.secs)

    def round_secs_left(self, budget: Budget, spent_secs: float, snapshot: JobSnapshot) -> float:
        """Return the seconds after which a round ends early; inf without a limit in seconds.

        A final without anything to confirm needs no time.
        """
        if budget.secs is None:
            return math.inf
        has_best = any(math.isfinite(row.latency) for row in snapshot.rows)
        return (1.0 - _CUT_SHARE * has_best) * budget.secs - spent_secs

    def deadline(
        self, budget: Budget, spent_secs: float, now: Callable[[], float]
    ) -> finals.Deadline:
        """Return the deadline of a final that begins now.

        It has what is left of the budget, and at least a twentieth of it: a round that ended late
        and earlier runs that used up the budget leave time for the tasks that matter most.

        Args:
            budget: Budget of the job; one without a limit in seconds sets no deadline.
            spent_secs: Seconds that the job has spent.
            now: Clock, seconds.
        """
        if budget.secs is None:
            return finals.Deadline(now, math.inf)
        return finals.Deadline(now, max(budget.secs - spent_secs, _MIN_SHARE * budget.secs))

    def _estimate(self, snapshot: JobSnapshot) -> float:
        """Estimate the seconds of a round and of the final after it.

        A rival takes about as long as a trial of its task: the finals of 28 jobs took 0.1 to 1.8
        times as long as that, 0.7 in the median.
        """
        with self._sessions() as session:
            n_rivals = {row.task_id: len(finals.rivals_of(session, row)) for row in snapshot.rows}
            histories = rounds.history(session, list(n_rivals))
        final_secs = 0.0
        round_secs: list[float] = []
        for task_id, history in histories.items():
            secs = [result.secs for result in history if result.secs]
            n_trials = sum(result.n_trials for result in history if result.secs)
            final_secs += n_rivals[task_id] * sum(secs) / max(n_trials, 1)
            round_secs += secs
        return final_secs + (fmean(round_secs) if round_secs else 0.0)

"""Scheduling decisions with their reasons."""

from dataclasses import dataclass, field
from typing import Literal

Reason = Literal["warm_up", "gradient", "tvm", "epsilon", "retry", "round_robin"]


@dataclass(frozen=True)
class Decision:
    """A decision to spend a round on a task.

    Attributes:
        task: Row of the task in the table.
        n_trials: Trials the round may spend.
        reason: Rule that picked the task.
        terms: Every number that the rule used, finite and JSON-able. ``warm_up``: priority
            (weight x flop). ``retry``: n_failed_rounds, rounds_since_pick, backoff.
            ``round_robin``: n_rounds. ``gradient`` and ``tvm``: backward, optimistic and
            similarity (seconds per round), roof (seconds of one call). ``epsilon``: those of the
            estimator. All three: objective_weight, gain, cost (of a trial, relative to the average
            task's), epsilon_draw, and, if another task could be picked, runner_up (its row) and
            runner_up_gain (gain / cost).
    """

    task: int
    n_trials: int
    reason: Reason
    terms: dict[str, float] = field(default_factory=dict)

"""Record one pick of the scheduler with its reasons."""

from dataclasses import dataclass, field
from typing import Literal

Reason = Literal["warm_up", "gradient", "forecast", "tvm", "epsilon", "retry", "round_robin"]


@dataclass(frozen=True)
class Decision:
    """Spend a round on a task.

    Attributes:
        task: Row in the table the decision was made from.
        n_trials: Trials the round may spend.
        reason: The rule that picked the task.
        terms: Every number the rule weighed, finite and JSON-able. ``warm_up``: priority
            (weight x flop). ``retry``: n_failed_rounds, rounds_since_pick, backoff.
            ``round_robin``: n_rounds. ``gradient`` and ``tvm``: backward, optimistic and
            similarity (seconds per round). ``forecast``: expected and spread (seconds of one
            call), exponent. ``epsilon``: those of the estimator. All four: objective_weight,
            gain, cost (of a trial, relative to the average task's), epsilon_draw, and, if
            another task could be picked, runner_up (its row) and runner_up_gain (gain / cost).
    """

    task: int
    n_trials: int
    reason: Reason
    terms: dict[str, float] = field(default_factory=dict)

"""Explanations of picks."""

import pytest

from tuner.queries.picks import explain


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"reason": "warm_up", "priority": 1e9}, "first round"),
        (
            {"reason": "retry", "n_failed_rounds": 2.0, "rounds_since_pick": 3.0, "backoff": 2.0},
            "2 rounds failed, 3 picks ago, after waiting for 2",
        ),
        ({"reason": "round_robin", "n_rounds": 4.0}, "fewest rounds: 4 rounds"),
        (
            {
                "reason": "gradient",
                "gain": 1.25e-5,
                "runner_up_gain": 5e-6,
                "backward": -1e-6,
                "optimistic": -2e-5,
                "similarity": None,
                "objective_weight": 2.0,
                "cost": 1.5,
            },
            "gain 0.008333 ms a round, the next best 0.005 ms, recent slope -0.001 ms a round, "
            "hope -0.02 ms, step to what similar tasks reach unknown, weight 2, "
            "a trial costs 1.5 of the average",
        ),
        ({"reason": "epsilon", "gain": 1e-5, "backward": 0.0}, "drawn at random"),
        ({"reason": "removed", "gain": 1e-5}, "picked by a rule that this version no longer has"),
        ({}, "no reason was stored"),
    ],
)
def test_every_reason_has_a_sentence(terms: dict[str, object], words: str) -> None:
    """A sentence has the numbers behind the reason, in milliseconds."""
    assert words in explain(terms)

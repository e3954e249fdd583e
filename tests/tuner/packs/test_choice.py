"""Candidates go where they may save time, the likeliest first."""

import pytest

from tuner.packs.choice import choose, share_out


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (4, {"large": 4, "small": 0, "few": 0}),
        (20, {"large": 8, "small": 8, "few": 3}),
        (119, {"large": 81, "small": 35, "few": 3}),
        (1000, {"large": 100, "small": 100, "few": 3}),
    ],
)
def test_shares_follow_the_costs(n: int, expected: dict[str, int]) -> None:
    """Every workload gets a few, none more than it has."""
    shares = share_out(
        {"large": 3.0, "small": 1.0, "few": 2.0}, {"large": 100, "small": 100, "few": 3}, n
    )

    assert sum(shares.values()) == min(n, 203)
    if n in (4, 1000):
        assert shares == expected
    else:
        assert shares["few"] == 3
        assert shares["large"] >= shares["small"] >= 8


def test_first_half_is_the_first_by_estimate() -> None:
    """The others are drawn, from the better third twice as often, and nothing known is chosen."""
    names = [f"name-{number}" for number in range(100)]
    chosen = choose(names, {"name-1"}, 20, seed=1)

    assert chosen[:10] == [names[0], *names[2:11]]
    assert len(set(chosen)) == 20
    assert choose(names, {"name-1"}, 20, seed=1) == chosen
    assert choose(names, (), 20, seed=2) != choose(names, (), 20, seed=3)


def test_all_are_chosen_where_there_are_few() -> None:
    """In their order."""
    assert choose(["a", "b", "c"], {"b"}, 2, seed=0) == ["a", "c"]

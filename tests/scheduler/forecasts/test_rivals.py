"""Division of a round among the variants of a task."""

import math

import pytest

from scheduler.forecasts.rivals import Rival, divide_round, win_chances

MANY = 1000


def test_every_variant_gets_its_first_trials() -> None:
    """Without trials, two go to each variant and the rest to the first, the definition."""
    shares = divide_round([Rival((), MANY), Rival((), MANY), Rival((), 1)], 16)

    assert shares == [13, 2, 1]


def test_a_round_of_few_trials_takes_turns() -> None:
    """The variant with the fewest trials comes first, in the order of the variants."""
    assert divide_round([Rival((), MANY), Rival((), MANY), Rival((), MANY)], 2) == [1, 1, 0]
    assert divide_round([Rival((2.0,), MANY), Rival((1.0,), MANY), Rival((), MANY)], 1) == [0, 0, 1]


def test_close_rivals_share_a_round() -> None:
    """A variant that is slower by a tenth is likely to win, so it gets a good part."""
    slow, fast = Rival((1.1,) * 4, MANY), Rival((1.0,) * 4, MANY)

    shares = divide_round([slow, fast], 16)

    assert sum(shares) == 16
    assert shares[1] >= shares[0] >= 4


def test_a_variant_that_cannot_win_gets_nothing() -> None:
    """Many trials without progress make a forecast sure; a roof above the fastest is enough."""
    fast = Rival((1.0,) * 8, MANY)

    assert divide_round([Rival((3.0,) * 64, MANY), fast], 16) == [0, 16]
    assert divide_round([Rival((1.1,) * 4, MANY, roof_secs=1.05), fast], 16) == [0, 16]


def test_a_variant_that_fails_gets_nothing() -> None:
    """Two failures are enough while another variant runs."""
    shares = divide_round([Rival((1.0, 1.0), MANY), Rival((math.inf, math.inf), MANY)], 8)

    assert shares == [8, 0]


def test_the_definition_goes_on_where_nothing_runs() -> None:
    """If all trials failed, the first variant gets the round."""
    failed = Rival((math.inf,) * 4, MANY)

    assert divide_round([failed, failed], 8) == [8, 0]


@pytest.mark.parametrize("n_trials", [0, 1, 7, 64])
def test_no_rival_gets_more_than_it_has(n_trials: int) -> None:
    """Trials that one variant lacks go to those that can win, as long as these have candidates."""
    rivals = [Rival((1.2, 1.1), 20), Rival((1.0, 1.0), 3)]

    shares = divide_round(rivals, n_trials)

    assert all(share <= rival.n_left for share, rival in zip(shares, rivals, strict=True))
    assert sum(shares) == min(n_trials, 23)


def test_an_exhausted_winner_ends_the_task() -> None:
    """If only the fastest can win and nothing is left of it, no variant gets a trial."""
    assert divide_round([Rival((9.0,) * 64, MANY), Rival((1.0,) * 8, 0)], 16) == [0, 0]


def test_chances_fall_with_the_distance() -> None:
    """The chance of a rival is the smaller the slower it is; the fastest has 1."""
    bests = (1.0, 1.1, 1.5, 2.5)

    chances = win_chances([Rival((best,) * 6, MANY) for best in bests], 8)

    assert chances[0] == 1.0
    assert chances == sorted(chances, reverse=True)

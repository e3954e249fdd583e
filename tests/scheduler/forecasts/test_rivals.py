"""Division of a round among the variants of a task."""

import math

import pytest

from scheduler.forecasts.rivals import Rival, divide_round, win_chances

MANY = 1000


_FAST = Rival((1.0,) * 8, MANY)
_FAILED = Rival((math.inf,) * 4, MANY)


@pytest.mark.parametrize(
    ("rivals", "n_trials", "shares"),
    [
        # Without trials, two go to each variant and the rest to the first, the definition.
        ([Rival((), MANY), Rival((), MANY), Rival((), 1)], 16, [13, 2, 1]),
        # Of few trials, the variant with the fewest comes first, in the order of the variants.
        ([Rival((), MANY)] * 3, 2, [1, 1, 0]),
        ([Rival((2.0,), MANY), Rival((1.0,), MANY), Rival((), MANY)], 1, [0, 0, 1]),
        # Many trials without progress make a forecast sure; a roof above the fastest is enough.
        ([Rival((3.0,) * 64, MANY), _FAST], 16, [0, 16]),
        ([Rival((1.1,) * 4, MANY, roof_secs=1.05), _FAST], 16, [0, 16]),
        # Two failures are enough while another variant runs.
        ([Rival((1.0, 1.0), MANY), Rival((math.inf, math.inf), MANY)], 8, [8, 0]),
        # The definition goes on where nothing runs.
        ([_FAILED, _FAILED], 8, [8, 0]),
        # Nothing is left of the only one that can win.
        ([Rival((9.0,) * 64, MANY), Rival((1.0,) * 8, 0)], 16, [0, 0]),
    ],
)
def test_trials_go_to_variants_that_can_win(
    rivals: list[Rival], n_trials: int, shares: list[int]
) -> None:
    """First each variant gets a few trials, then those alone that may still become the fastest."""
    assert divide_round(rivals, n_trials) == shares


def test_close_rivals_share_a_round() -> None:
    """A variant that is slower by a tenth is likely to win, so it gets a good part."""
    slow, fast = Rival((1.1,) * 4, MANY), Rival((1.0,) * 4, MANY)

    shares = divide_round([slow, fast], 16)

    assert sum(shares) == 16
    assert shares[1] >= shares[0] >= 4


@pytest.mark.parametrize("n_trials", [0, 1, 7, 64])
def test_no_rival_gets_more_than_it_has(n_trials: int) -> None:
    """Trials that one variant lacks go to those that can win, as long as these have candidates."""
    rivals = [Rival((1.2, 1.1), 20), Rival((1.0, 1.0), 3)]

    shares = divide_round(rivals, n_trials)

    assert all(share <= rival.n_left for share, rival in zip(shares, rivals, strict=True))
    assert sum(shares) == min(n_trials, 23)


def test_chances_fall_with_the_distance() -> None:
    """The chance of a rival is the smaller the slower it is; the fastest has 1."""
    bests = (1.0, 1.1, 1.5, 2.5)

    chances = win_chances([Rival((best,) * 6, MANY) for best in bests], 8)

    assert chances[0] == 1.0
    assert chances == sorted(chances, reverse=True)

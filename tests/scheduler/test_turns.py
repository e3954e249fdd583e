"""Owners take turns, and each owner's items keep their order."""

from scheduler.turns import Turns


def test_owners_take_turns() -> None:
    """An owner with many items delays another by one at most."""
    waiting = [(number, "many") for number in range(4)] + [(4, "one"), (5, "two"), (6, "one")]
    turns, served = Turns(), []
    while waiting:
        item = turns.ordered(waiting, lambda item: item[1])[0]
        turns.serve(item[1])
        waiting.remove(item)
        served.append(item[0])

    assert served == [0, 4, 5, 1, 6, 2, 3]

"""Suspects outlive the coordinator that blamed them."""

from sqlalchemy.orm import Session

from records.tuning import suspects
from records.tuning.suspects import Blame
from tests.records import make


def test_blames_add_up(session: Session) -> None:
    """Blames of one transaction and of several add up, by task and trace."""
    first, second = make.task(session, "w0"), make.task(session, "w1")
    assert suspects.all_suspects(session) == {}

    suspects.add_blames(session, [Blame(second, "a", 1.0), Blame(first, "a", 0.5)])
    suspects.add_blames(session, [Blame(first, "a", 1.0), Blame(first, "a", 0.5)])

    assert suspects.all_suspects(session) == {(first, "a"): 2.0, (second, "a"): 1.0}

"""Suspects: candidates that are blamed for the loss of devices, over all coordinators."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.models import Suspect
from records.storage.upsert import insert


class Blame(NamedTuple):
    """Blame of a candidate for the loss of a device.

    Attributes:
        trace_hash: Hash of its trace, or of those that ran in turns.
        share: Share of the blame, from 0 to 1.
    """

    task_id: int
    trace_hash: str
    share: float


def add_blames(session: Session, blames: Sequence[Blame]) -> None:
    """Add to what candidates are blamed for."""
    # In the order of the key, so that two writers never deadlock.
    for blame in sorted(blames):
        statement = insert(session, Suspect).values(
            task_id=blame.task_id, trace_hash=blame.trace_hash, blame=blame.share
        )
        session.execute(
            statement.on_conflict_do_update(
                index_elements=[Suspect.task_id, Suspect.trace_hash],
                set_={"blame": Suspect.blame + statement.excluded.blame},
            )
        )


def all_suspects(session: Session) -> dict[tuple[int, str], float]:
    """Return the devices that each suspect is blamed for, by task and hash of the trace."""
    rows = session.execute(select(Suspect.task_id, Suspect.trace_hash, Suspect.blame))
    return {(task_id, trace_hash): blame for task_id, trace_hash, blame in rows}

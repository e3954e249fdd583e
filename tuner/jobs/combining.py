"""Several networks as one: their tasks together, each once."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session, sessionmaker

from records import networks, tasks
from tuner.errors import RequestError
from tuner.jobs.preparation import Prepared


def combine(sessions: sessionmaker[Session], members: Sequence[Prepared]) -> Prepared:
    """Return networks as one network whose tasks are those of all; one stays as it is.

    A task that several networks share is there once, with the sum of its weights.

    Raises:
        RequestError: If a network is given twice, or two have one name.
    """
    if len(members) == 1:
        return members[0]
    names = [member.model.name for member in members]
    if len(set(names)) < len(names):
        raise RequestError(f"networks must differ and have different names, got {', '.join(names)}")
    member_ids = sorted(member.network_id for member in members)
    if len(set(member_ids)) < len(member_ids):
        raise RequestError(f"the same network is given twice: {', '.join(names)}")
    # Rows, not models: another version of an engine splits the same model into other tasks.
    sha256 = hashlib.sha256(f"networks {member_ids}".encode()).hexdigest()
    first = members[0]
    with sessions.begin() as session:
        network_id = networks.ensure_union(
            session, sha256, " + ".join(names), first.target_id, member_ids
        ).id
        weighted = tuple(tasks.weighted_tasks(session, network_id, first.target_id))
    return replace(
        first,
        model=replace(first.model, name=" + ".join(names), sha256=sha256),
        network_id=network_id,
        tasks=weighted,
        n_kernel_calls=sum(member.n_kernel_calls for member in members),
        notes=tuple(note for member in members for note in member.notes),
        members=tuple(members),
    )

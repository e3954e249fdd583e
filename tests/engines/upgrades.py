"""A database that another version wrote, as an upgrade finds it."""

import json
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records import targets
from records.models import Target


def age(sessions: sessionmaker[Session], **device: Any) -> int:
    """Make the newest target one of another device fingerprint; returns its id."""
    with sessions.begin() as session:
        target = session.scalars(select(Target).order_by(Target.id.desc()).limit(1)).one()
        target.device = {**target.device, **device}
        target.fingerprint = targets.fingerprint(target.spec, target.device)
        return target.id


def respell(sessions: sessionmaker[Session], target_id: int, **attributes: Any) -> None:
    """Change what a target's text says."""
    with sessions.begin() as session:
        target = session.get_one(Target, target_id)
        spec = {**json.loads(target.spec), **attributes}
        target.spec = json.dumps(spec, sort_keys=True, separators=(",", ":"))
        target.fingerprint = targets.fingerprint(target.spec, target.device)

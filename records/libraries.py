"""Libraries: the rows of compiled networks; the caller manages their files."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.models import Library
from records.service.owners.access import EVERYTHING, Viewer, visible_libraries
from records.storage.upsert import find_or_insert


@dataclass(frozen=True, kw_only=True)
class NewLibrary:
    """A compiled network; ``key`` is the hash of all inputs of the build."""

    key: str
    target_id: int
    manifest: dict[str, Any]
    path: str
    network_id: int | None = None


def ensure_library(session: Session, new: NewLibrary) -> Library:
    """Return the row of a library, inserting it if its key is new."""
    values = {name: getattr(new, name) for name in new.__dataclass_fields__ if name != "key"}
    return find_or_insert(session, Library, {"key": new.key}, values)


def library_of(session: Session, key: str) -> Library | None:
    """Return the library with a key, or None."""
    return session.scalars(select(Library).where(Library.key == key)).one_or_none()


def list_libraries(
    session: Session,
    *,
    before: int | None = None,
    limit: int | None = None,
    viewer: Viewer = EVERYTHING,
) -> list[Library]:
    """Return libraries that a viewer may see, the newest first.

    Args:
        before: Only those before this id.
        limit: Maximum number; None for all.
        viewer: Client that sees them.
    """
    stmt = select(Library).where(visible_libraries(viewer)).order_by(Library.id.desc()).limit(limit)
    if before is not None:
        stmt = stmt.where(Library.id < before)
    return list(session.scalars(stmt))

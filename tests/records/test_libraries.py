"""Libraries are identified by their key."""

from sqlalchemy.orm import Session

from records import libraries
from tests.records import make


def test_a_library_is_stored_once(session: Session) -> None:
    """The first row of a key stays."""
    target_id = make.target(session)
    new = libraries.NewLibrary(key="k", target_id=target_id, manifest={"a": 1}, path="/x")

    row = libraries.ensure_library(session, new)

    assert libraries.ensure_library(session, new).id == row.id
    assert libraries.library_of(session, "k") is row
    assert libraries.list_libraries(session) == [row]
    assert libraries.library_of(session, "another") is None

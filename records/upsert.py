"""Inserts that stay correct when another process inserts the same row at the same time."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from sqlalchemy import Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from records.models import Base

Row = TypeVar("Row", bound=Base)
Built = TypeVar("Built")
_INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def table(model: type[Base]) -> Table:
    """Return the table of a model: statements on it are spared what the ORM does, row by row."""
    return cast("Table", model.__table__)


def insert(session: Session, model: type[Base]) -> postgresql.Insert:
    """Return the INSERT of this database that knows ON CONFLICT.

    SQLite's has the same methods; the annotation names one so that mypy can follow.
    """
    statement: postgresql.Insert = _INSERTS[session.get_bind().dialect.name](model)  # type: ignore[assignment]
    return statement


def built_once(
    model: type[Base], build: Callable[[postgresql.Insert], Built]
) -> Callable[[Session], Built]:
    """Return a function that has the INSERT of a session's database, see :func:`insert`.

    To build one takes longer than the database takes to run it, so it is built once for each kind.

    Args:
        model: The table; the ORM, which looks at row after row, has no part in it.
        build: Adds what is done on a conflict, and what is returned.
    """

    @cache
    def built(dialect: str) -> Built:
        statement: postgresql.Insert = _INSERTS[dialect](table(model))  # type: ignore[assignment]
        return build(statement)

    return lambda session: built(session.get_bind().dialect.name)


def insert_new(session: Session, model: type[Base], values: dict[str, Any]) -> int | None:
    """Insert a row and return its id, or None if it breaks no rule but uniqueness."""
    statement = insert(session, model).values(**values).on_conflict_do_nothing()
    identity: int | None = session.scalar(statement.returning(model.__table__.c.id))
    return identity


def find_or_insert(
    session: Session, model: type[Row], key: dict[str, Any], values: dict[str, Any]
) -> Row:
    """Return the row with a unique key, inserting it first if there is none.

    Args:
        session: The transaction.
        model: The table.
        key: The columns of one of its unique constraints.
        values: The other columns, used only if the row is new.
    """
    wanted = select(model).filter_by(**key)
    found = session.scalars(wanted).one_or_none()
    if found is None:
        session.execute(insert(session, model).values(**key, **values).on_conflict_do_nothing())
        found = session.scalars(wanted).one()
    return found

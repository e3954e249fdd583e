"""Inserts that are safe when another process inserts the same row at the same time."""

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
    """Return the table of a model; statements on it avoid the ORM's work on every row."""
    return cast("Table", model.__table__)


def insert(session: Session, model: type[Base]) -> postgresql.Insert:
    """Return the INSERT of this database's dialect, which supports ON CONFLICT.

    The insert of SQLite has the same methods; the annotation names one class for mypy.
    """
    statement: postgresql.Insert = _INSERTS[session.get_bind().dialect.name](model)  # type: ignore[assignment]
    return statement


def built_once(
    model: type[Base], build: Callable[[postgresql.Insert], Built]
) -> Callable[[Session], Built]:
    """Return a function that maps a session to the INSERT of its database, see :func:`insert`.

    Building a statement takes longer than running it, so it is built once for each dialect.

    Args:
        model: The table; the statement bypasses the ORM.
        build: Function that adds the conflict clause and the returned columns.
    """

    @cache
    def built(dialect: str) -> Built:
        statement: postgresql.Insert = _INSERTS[dialect](table(model))  # type: ignore[assignment]
        return build(statement)

    return lambda session: built(session.get_bind().dialect.name)


def insert_new(session: Session, model: type[Base], values: dict[str, Any]) -> int | None:
    """Insert a row and return its id, or None if a row with the same unique key exists."""
    statement = insert(session, model).values(**values).on_conflict_do_nothing()
    identity: int | None = session.scalar(statement.returning(model.__table__.c.id))
    return identity


def find_or_insert(
    session: Session, model: type[Row], key: dict[str, Any], values: dict[str, Any]
) -> Row:
    """Return the row with a unique key, inserting it if it does not exist.

    Args:
        model: The table.
        key: Columns of one of its unique constraints.
        values: Other columns, used only if the row is new.
    """
    stmt = select(model).filter_by(**key)
    row = session.scalars(stmt).one_or_none()
    if row is None:
        session.execute(insert(session, model).values(**key, **values).on_conflict_do_nothing())
        row = session.scalars(stmt).one()
    return row

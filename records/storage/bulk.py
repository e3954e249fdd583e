"""Statements of SQLAlchemy on many rows, which are built once and take rows as tuples."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Select, bindparam
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from records.models import Base
from records.storage.upsert import built_once

# Keys of one look-up: SQLite takes at most 32,766 parameters.
_MAX_KEYS = 1000

Values = tuple[Any, ...]


class BulkStatement:
    """A statement that runs once for each of many rows, and returns nothing.

    Args:
        statement: INSERT or UPDATE of a table.
        names: Its parameters, in the order of the values of a row.
    """

    def __init__(self, statement: Any, names: Sequence[str]) -> None:
        self._statement = statement
        self._names = tuple(names)

    def execute(self, session: Session, rows: Sequence[Values]) -> None:
        """Run the statement for each row, in this order; do nothing without rows.

        Raises:
            sqlalchemy.exc.DBAPIError: If the database refuses a row.
            sqlalchemy.exc.StatementError: If a value cannot be converted, such as an object within
                JSON.
        """
        if rows:
            session.connection().execute(self._statement, _named(self._names, rows))


class BulkInsert:
    """An INSERT of many rows that returns columns of those that it inserted or changed.

    Args:
        model: The table.
        names: Its columns, in the order of the values of a row.
        build: Function that adds the conflict clause and the returned columns.
    """

    def __init__(
        self, model: type[Base], names: Sequence[str], build: Callable[[postgresql.Insert], Any]
    ) -> None:
        self._statement_of = built_once(model, build)
        self._names = tuple(names)

    def execute(self, session: Session, rows: Sequence[Values]) -> Sequence[Values]:
        """Insert rows and return what the statement returns, in no particular order.

        Raises:
            sqlalchemy.exc.DBAPIError: If the database refuses a row.
            sqlalchemy.exc.StatementError: If a value cannot be converted, such as an object within
                JSON.
        """
        if not rows:
            return []
        statement = self._statement_of(session)
        return session.connection().execute(statement, _named(self._names, rows)).fetchall()


class BulkSelect:
    """A look-up of rows by many keys.

    Args:
        statement: SELECT of columns of a table.
        key: Column of numbers that identifies a row.
    """

    def __init__(self, statement: Select[Any], key: ColumnElement[int]) -> None:
        self._statement = statement.where(key.in_(bindparam("keys", expanding=True)))

    def execute(self, session: Session, keys: Sequence[int]) -> Sequence[Values]:
        """Return the rows of those keys that exist, in no particular order."""
        connection = session.connection()
        chunks = (keys[begin : begin + _MAX_KEYS] for begin in range(0, len(keys), _MAX_KEYS))
        return [
            row for keys in chunks for row in connection.execute(self._statement, {"keys": keys})
        ]


def _named(names: Sequence[str], rows: Sequence[Values]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]

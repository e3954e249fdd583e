"""Statements on many rows, prepared once: SQLAlchemy's work on each row exceeds the database's.

SQLAlchemy compiles the statements, and its types convert the values. Rows are tuples, which are
passed on to the driver without being looked at one by one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import is_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Dialect, Select, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from records.models import Base
from records.storage.upsert import table

# Rows of one statement that returns some. Drivers keep the plans of a limited number of
# statements, so that not every length has one of its own.
_CHUNK_SIZES = (128, 16, 1)
_INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}

Values = tuple[Any, ...]


class _Prepared(NamedTuple):
    """Compiled statement.

    Attributes:
        text: Statement as the driver takes it.
        order: Names of its parameters, in the order in which the driver takes them.
        by_name: True if the driver takes them by name.
        processors: Conversion of a parameter's values, by name, where there is one.
        constants: Parameters with the same value for all rows.
        result_processors: Conversion of the returned values, by column, where there is one.
    """

    text: str
    order: tuple[str, ...]
    by_name: bool
    processors: dict[str, Callable[[Any], Any]]
    constants: dict[str, Any]
    result_processors: dict[int, Callable[[Any], Any]]


_PreparedBySize = WeakKeyDictionary[Dialect, dict[int, _Prepared]]


class BulkStatement:
    """A statement that runs once for each of many rows, and returns nothing.

    Args:
        statement: INSERT or UPDATE of a table.
        names: Its parameters, in the order of the values of a row.
    """

    def __init__(self, statement: Any, names: Sequence[str]) -> None:
        self._statement = statement
        self._names = tuple(names)
        self._prepared: WeakKeyDictionary[Dialect, _Prepared] = WeakKeyDictionary()

    def execute(self, session: Session, rows: Sequence[Values]) -> None:
        """Run the statement for each row, in this order; do nothing without rows.

        Raises:
            sqlalchemy.exc.DBAPIError: If the database refuses a row.
            TypeError, ValueError: If a value cannot be converted, such as an object within JSON.
        """
        if not rows:
            return
        connection = session.connection()
        prepared = self._prepared.get(connection.dialect)
        if prepared is None:
            prepared = _prepare(self._statement, connection.dialect, self._names)
            self._prepared[connection.dialect] = prepared
        columns: dict[str, Sequence[Any]] = {}
        for name, values in zip(self._names, zip(*rows, strict=True), strict=True):
            process = prepared.processors.get(name)
            # Statements may have a parameter several times.
            columns[name] = values if process is None else _process(process, values)
        for name, constant in prepared.constants.items():
            columns[name] = [constant] * len(rows)
        ordered = zip(*[columns[name] for name in prepared.order], strict=True)
        connection.exec_driver_sql(prepared.text, _parameters(prepared, ordered))


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
        self._model = model
        self._names = tuple(names)
        self._build = build
        self._prepared: _PreparedBySize = WeakKeyDictionary()

    def execute(self, session: Session, rows: Sequence[Values]) -> list[Values]:
        """Insert rows and return what the statement returns, in no particular order.

        Raises:
            sqlalchemy.exc.DBAPIError: If the database refuses a row.
            TypeError, ValueError: If a value cannot be converted, such as an object within JSON.
        """
        return _execute_chunks(session, rows, self._prepared, self._prepare, self._convert)

    def _convert(self, prepared: _Prepared, rows: Sequence[Values]) -> list[Any]:
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for index, name in enumerate(self._names):
            process = prepared.processors.get(f"{name}_m0")
            if process is not None:
                columns[index] = _process(process, columns[index])
        return list(chain.from_iterable(zip(*columns, strict=True)))

    def _prepare(self, dialect: Dialect, n_rows: int) -> _Prepared:
        # The insert of SQLite has the same methods.
        add: Any = _INSERTS[dialect.name](table(self._model))
        add = add.values([dict.fromkeys(self._names)] * n_rows)
        names = [f"{name}_m{row}" for row in range(n_rows) for name in self._names]
        return _prepare(self._build(add), dialect, names)


class BulkSelect:
    """A look-up of rows by many keys.

    Args:
        statement: SELECT of columns of a table: numbers, text and JSON.
        key: Column of numbers that identifies a row.
    """

    def __init__(self, statement: Select[Any], key: ColumnElement[int]) -> None:
        self._statement = statement
        self._key = key
        self._prepared: _PreparedBySize = WeakKeyDictionary()

    def execute(self, session: Session, keys: Sequence[int]) -> list[Values]:
        """Return the rows of those keys that exist, in no particular order."""
        return _execute_chunks(session, keys, self._prepared, self._prepare, lambda _, chunk: chunk)

    def _prepare(self, dialect: Dialect, n_keys: int) -> _Prepared:
        names = [f"key_{index}" for index in range(n_keys)]
        marks = [bindparam(name, type_=self._key.type) for name in names]
        return _prepare(self._statement.where(self._key.in_(marks)), dialect, names)


def _execute_chunks(
    session: Session,
    items: Sequence[Any],
    prepared_by_size: _PreparedBySize,
    prepare: Callable[[Dialect, int], _Prepared],
    convert: Callable[[_Prepared, Sequence[Any]], Sequence[Any]],
) -> list[Values]:
    """Run one statement for each chunk of items, and return the rows of all."""
    if not items:
        return []
    connection = session.connection()
    by_size = prepared_by_size.setdefault(connection.dialect, {})
    returned: list[Any] = []
    for chunk in _chunks(items):
        prepared = by_size.get(len(chunk))
        if prepared is None:
            prepared = by_size[len(chunk)] = prepare(connection.dialect, len(chunk))
        (parameters,) = _parameters(prepared, [tuple(convert(prepared, chunk))])
        rows = connection.exec_driver_sql(prepared.text, parameters).fetchall()
        returned += _convert_results(rows, prepared.result_processors) if rows else ()
    return returned


def _convert_results(
    rows: Sequence[Any], processors: dict[int, Callable[[Any], Any]]
) -> Iterable[Values]:
    if not processors:
        return rows
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    for index, process in processors.items():
        columns[index] = _process(process, columns[index])
    return zip(*columns, strict=True)


def _chunks(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Cut items into chunks of the sizes that statements are prepared for, the largest first."""
    begin = 0
    for size in _CHUNK_SIZES:
        while len(items) - begin >= size:
            yield items[begin : begin + size]
            begin += size


def _prepare(statement: Any, dialect: Dialect, names: Sequence[str]) -> _Prepared:
    """Compile a statement with the parameters ``names`` and constants.

    Raises:
        ValueError: If it has others, such as columns with a default.
    """
    compiled = statement.compile(dialect=dialect, column_keys=names)
    processors, constants = {}, {}
    for bind, name in compiled.bind_names.items():
        process = bind.type.dialect_impl(dialect).bind_processor(dialect)
        if name in names:
            processors[name] = process
        elif bind.required or bind.value is None:
            raise ValueError(f"{compiled} requires {name}")
        else:
            constants[name] = bind.value if process is None else process(bind.value)
    # The driver of PostgreSQL returns JSON and numbers as Python's, that of SQLite as stored.
    columns = statement.exported_columns if isinstance(statement, Select) else ()
    results = {
        index: column.type.dialect_impl(dialect).result_processor(dialect, None)
        for index, column in enumerate(columns)
        if dialect.name == "sqlite"
    }
    return _Prepared(
        str(compiled),
        tuple(compiled.positiontup or compiled.bind_names.values()),
        compiled.positiontup is None,
        {name: process for name, process in processors.items() if process is not None},
        constants,
        {index: process for index, process in results.items() if process is not None},
    )


def _parameters(prepared: _Prepared, rows: Iterable[Values]) -> list[Any]:
    """Return the parameters of each row as the driver takes them."""
    if prepared.by_name:
        return [dict(zip(prepared.order, row, strict=True)) for row in rows]
    return list(rows)


def _process(process: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Convert the values of a column; one that they all share, such as their time, once."""
    if all(map(is_, values, repeat(values[0]))):
        return [process(values[0])] * len(values)
    return [process(value) for value in values]

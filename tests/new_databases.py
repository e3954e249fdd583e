"""Tables of new SQLite files in tests, created by one script, and statements compiled once.

Tests create thousands of databases, and the models take a twentieth of a second for each. The
script is what they lead to. Processes that tests start, and the tests of migrations, do without it.
Each engine would compile its statements again, an eighth of the time of tests with a database.
"""

import sqlite3
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Engine, make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from records import migrations
from records.storage import connections

# The function of the product.
MIGRATE = migrations.migrate


def create_tables_at_once() -> None:
    """Have this process, and those forked from it, run one script for a new SQLite file."""
    migrations.migrate = _create_tables


def share_statements() -> None:
    """Have all engines of this process share the statements that one has compiled."""
    shared: LRUCache[Any, Any] = LRUCache(4000)
    initialize = Engine.__init__

    def initialize_sharing(engine: Engine, *args: Any, **options: Any) -> None:
        initialize(engine, *args, **options)
        engine._compiled_cache = shared

    Engine.__init__ = initialize_sharing  # type: ignore[method-assign, assignment]
    for dialect in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        # Dialects, which are part of the keys, have the same options in all engines.
        dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
        dialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]


def _create_tables(engine: Engine, shown: str) -> None:
    if engine.dialect.name == "sqlite":
        with migrations._transaction(engine) as connection:
            if migrations._state(connection, shown) == "empty":
                for statement in _script():
                    connection.exec_driver_sql(statement)
                return
    MIGRATE(engine, shown)


@cache
def _script() -> list[str]:
    """Return the statements that create the tables of this version, without a transaction."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        engine = connections.connect(make_url(f"sqlite:///{path}"))
        MIGRATE(engine, str(path))
        engine.dispose()
        connection = sqlite3.connect(path)
        statements = list(connection.iterdump())
        connection.close()
    assert (statements[0], statements[-1]) == ("BEGIN TRANSACTION;", "COMMIT;")
    return statements[1:-1]

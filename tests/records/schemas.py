"""Schemas of SQLite files, one for each revision: PATHS; run as a module, it writes the newest."""

import sqlite3
import tempfile
from pathlib import Path

from records import database, migrations

PATHS = sorted(Path(__file__).parent.glob("version_*.sql"))


def main() -> None:
    """Write the tables of a new database into the file of the newest revision."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        database.open_database(f"sqlite:///{path}").dispose()
        connection = sqlite3.connect(path)
        lines = "\n".join(connection.iterdump()).splitlines()
        connection.close()
    to = Path(__file__).with_name(f"{migrations.newest()}.sql")
    to.write_text("".join(f"{line.rstrip()}\n" for line in lines))


if __name__ == "__main__":
    main()

"""Access to jobs and records, in a database or on a server."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.cli import connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuner.cli.backends.base import Backend


@contextmanager
def open_backend(database: str | None, data_dir: Path | None) -> "Iterator[Backend]":
    """Open the server that was chosen, or the database of this machine without one.

    Raises:
        RequestError: If a setting of this machine is given together with a server.
    """
    if connection.chosen() is None:
        from tuner.cli.backends.local import LocalBackend
        from tuner.context import open_context

        with open_context(database, data_dir) as context:
            yield LocalBackend(context)
        return
    from tuner.cli.backends.remote import RemoteBackend

    with connection.connect({"database": database, "data_dir": data_dir}) as client:
        yield RemoteBackend(client)

"""Where a command finds jobs and records: the local database, or a service."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.cli import connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuner.cli.backends.base import Backend


@contextmanager
def open_backend(database: str | None, data_dir: Path | None) -> "Iterator[Backend]":
    """Open the service that was named, else the database of this machine.

    Raises:
        RequestError: If a place on this machine is given beside a service.
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

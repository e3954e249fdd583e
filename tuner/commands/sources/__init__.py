"""Where a command finds jobs and records: the local database, or a service."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.commands import connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuner.commands.sources.base import Source


@contextmanager
def open_source(database: str | None, data_dir: Path | None) -> "Iterator[Source]":
    """Open the service that was named, else the database of this machine.

    Raises:
        RequestError: If a place on this machine is given beside a service.
    """
    if connection.chosen() is None:
        from tuner.commands.sources.local import LocalSource
        from tuner.context import open_context

        with open_context(database, data_dir) as context:
            yield LocalSource(context)
        return
    from tuner.commands.sources.remote import RemoteSource

    with connection.connect({"database": database, "data_dir": data_dir}) as client:
        yield RemoteSource(client)

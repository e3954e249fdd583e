"""Whether this machine's worker is alive, for a container's health check: exit status 0 or 1.

The database is asked, since a process that hangs is still a process.
"""

import socket
import sys

from records import database, workers
from records.errors import RecordsError
from tuner.errors import TunerError
from tuner.settings import Settings, read_settings


def find_trouble(settings: Settings, host: str) -> str:
    """Return why no worker on a host is taken for alive; empty if one is."""
    engine = database.open_database(settings.database)
    try:
        with database.sessions(engine, read_only=True)() as session:
            here = [w for w in workers.list_workers(session) if w.host == host]
    finally:
        engine.dispose()
    if any(workers.is_alive(worker) for worker in here):
        return ""
    if not here:
        return f"no worker on {host} has ever reported"
    return f"worker {here[0].name} was last heard of at {here[0].heartbeat:%Y-%m-%d %H:%M:%S}"


def main() -> int:
    """Say what is wrong, if anything is."""
    try:
        trouble = find_trouble(read_settings({}), socket.gethostname())
    except (RecordsError, TunerError) as error:
        trouble = str(error)
    if trouble:
        print(trouble, file=sys.stderr)
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())

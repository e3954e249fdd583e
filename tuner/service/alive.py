"""Health check of this machine's worker, for containers: exit status 0 or 1.

It reads the heartbeats and the progress in the database, because a process that hangs still exists,
and a thread of it may still send heartbeats. With ``--liveness``, for probes that restart what
fails, a database that does not answer is not the worker's trouble: a restart would not bring it
back, and a worker that hangs ends itself.
"""

import socket
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread

from sqlalchemy.exc import SQLAlchemyError

from records import database
from records.errors import DatabaseUnusable, RecordsError
from records.service import workers
from tuner.errors import TunerError
from tuner.settings import Settings, read_settings

LIVENESS = "--liveness"
# Beyond the time after which a worker ends itself.
_GRACE_SECS = 30.0
# Probes end the check after 20 s, and count that as a failure.
_MAX_LOOK_SECS = 12.0


def find_trouble(settings: Settings, host: str) -> str:
    """Return the reason why no worker of a host counts as alive; empty if one does."""
    engine = database.open_database(settings.database)
    try:
        with database.sessions(engine, read_only=True)() as session:
            here = [worker for worker in workers.list_workers(session) if worker.host == host]
    finally:
        engine.dispose()
    alive = [worker for worker in here if workers.is_alive(worker)]
    limit = settings.max_stall_secs + _GRACE_SECS
    if any((workers.progress_age_secs(worker) or 0.0) <= limit for worker in alive):
        return ""
    if not here:
        return f"no worker on {host} has ever sent a heartbeat"
    if alive:
        return (
            f"worker {alive[0].name} made no progress since {alive[0].progress:%Y-%m-%d %H:%M:%S}"
        )
    return f"worker {here[0].name} was last seen at {here[0].heartbeat:%Y-%m-%d %H:%M:%S}"


def find_in_time(settings: Settings, host: str) -> str:
    """Return what :func:`find_trouble` does, within a time that probes allow.

    Raises:
        DatabaseUnusable: If the database does not answer by then.
    """
    answer: Future[str] = Future()

    def look() -> None:
        try:
            answer.set_result(find_trouble(settings, host))
        except BaseException as error:
            answer.set_exception(error)

    # Its time-outs add up: one for each address, and for each statement.
    Thread(target=look, daemon=True).start()
    try:
        return answer.result(_MAX_LOOK_SECS)
    except TimeoutError as error:
        text = f"cannot use the database: it did not answer within {_MAX_LOOK_SECS:g} s"
        raise DatabaseUnusable(text) from error


def main(arguments: Sequence[str]) -> int:
    """Print the trouble, if there is any, and return the exit status."""
    has_database = True
    try:
        trouble = find_in_time(read_settings({}), socket.gethostname())
    except (DatabaseUnusable, SQLAlchemyError) as error:
        trouble, has_database = " ".join(str(error).split()), False
    except (RecordsError, TunerError) as error:
        trouble = str(error)
    if trouble:
        print(trouble, file=sys.stderr)
    return 1 if trouble and (has_database or LIVENESS not in arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

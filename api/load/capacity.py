"""The bounds of an API process, each of which follows from the others.

A request waits in the event loop for a slot, and only then takes a thread and a connection. There
is a connection for each slot, and a thread for each slot and for all other work in threads, so that
no thread waits for a connection and no holder of a connection for a thread. Three rules keep it so:

- a session of a request is opened through :mod:`api.load.transactions` only;
- a request that holds a slot does not wait for another one (checked by
  :mod:`api.load.fair_semaphore`);
- no slot is held while a client sends or receives.
"""

import contextlib
import resource
from dataclasses import dataclass

from sqlalchemy import make_url

#: Exports at a time; each has a thread, and its reader takes another one.
MAX_EXPORTS = 2
#: Threads that read event streams.
N_EVENT_THREADS = 2
# They share one interpreter: more of them do not read faster, and delay the event loop.
_N_READERS = 4
# SQLite has one write lock. A request that waits for it in the event loop costs no thread.
_N_WRITERS = {"sqlite": 1, "postgresql": 4}
_N_FILE_WRITERS = 2
# Operations on files that take a moment, such as a chunk of an upload, and the check of an import.
_N_SHORT = 8
# Files that a process has open besides its connections: database, modules, uploads.
_N_OTHER_FILES = 256
#: Connections beyond the limit, for probes.
N_PROBE_CONNECTIONS = 64


@dataclass(frozen=True)
class Capacity:
    """Slots, connections and threads of a process.

    Attributes:
        n_readers: Requests that read the database at a time.
        n_writers: Requests that change the database at a time.
        n_file_writers: Requests that store a model at a time.
    """

    n_readers: int
    n_writers: int
    n_file_writers: int = _N_FILE_WRITERS

    @property
    def n_connections(self) -> int:
        """Connections to the database for requests and event streams."""
        return self.n_readers + self.n_writers + N_EVENT_THREADS

    @property
    def n_threads(self) -> int:
        """Threads that serve requests."""
        slots = self.n_readers + self.n_writers + self.n_file_writers
        return slots + MAX_EXPORTS + _N_SHORT


def capacity_of(database_url: str) -> Capacity:
    """Return the capacity of a process for a database."""
    backend = make_url(database_url).get_backend_name()
    kind = "sqlite" if backend == "sqlite" else "postgresql"
    return Capacity(_N_READERS, _N_WRITERS[kind])


def share_of_client(limit: int) -> int:
    """Return how much of a limit on connections one client may use: a quarter."""
    return max(limit // 4, 1)


def share_of_all(limit: int) -> int:
    """Return how much of a limit on connections may be held for long, by all clients: a half."""
    return max(limit // 2, 1)


def share_at_work(limit: int) -> int:
    """Return how many connections of one address may wait for this process: three quarters."""
    return max(limit - share_of_client(limit), 1)


def max_connections(requested: int) -> int:
    """Return how many connections of clients this process may have open, at most as requested.

    Raises the limit on open files of the process to the maximum of the system, and leaves room for
    the files that a process has open otherwise.
    """
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return requested
    return max(min(requested, limit - _N_OTHER_FILES), 1)

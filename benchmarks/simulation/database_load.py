"""Load that the coordinator puts on its database: transactions, statements and their time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, event

from benchmarks.simulation.clock import VirtualClock


@dataclass
class Load:
    """Counts, and seconds of this thread's core and of waits for a server or a disk."""

    n_transactions: int = 0
    n_statements: int = 0
    cpu_secs: float = 0.0
    wait_secs: float = 0.0

    def since(self, before: "Load") -> "Load":
        """Return the difference to an earlier load."""
        return Load(
            self.n_transactions - before.n_transactions,
            self.n_statements - before.n_statements,
            self.cpu_secs - before.cpu_secs,
            self.wait_secs - before.wait_secs,
        )


class DatabaseMeter:
    """Counter of an engine's load, which charges the clock for waits for a server.

    SQLite works in the calling process. Its waits for the disk are reported but not charged: they
    cannot be distinguished from waits for a core that another process occupies.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.load = Load()
        self._clock = clock
        self._began = 0.0, 0.0

    def watch(self, engine: Engine) -> None:
        """Start counting."""
        is_server = engine.dialect.name != "sqlite"
        event.listen(engine, "begin", self._count_transaction)
        event.listen(engine, "before_cursor_execute", self._begin)
        event.listen(engine, "after_cursor_execute", lambda *_: self._end(1, is_server=is_server))
        for name in ("do_commit", "do_rollback"):
            # SQLAlchemy has no event after either of them.
            setattr(engine.dialect, name, self._timed(getattr(engine.dialect, name), is_server))

    def _count_transaction(self, _connection: object) -> None:
        self.load.n_transactions += 1

    def _begin(self, *_: object) -> None:
        self._began = time.thread_time(), time.perf_counter()

    def _end(self, n_statements: int, *, is_server: bool) -> None:
        cpu_secs = time.thread_time() - self._began[0]
        wait_secs = max(time.perf_counter() - self._began[1] - cpu_secs, 0.0)
        if is_server:
            self._clock.charge(wait_secs)
        self.load.n_statements += n_statements
        self.load.cpu_secs += cpu_secs
        self.load.wait_secs += wait_secs

    def _timed(self, function: Callable[..., Any], is_server: bool) -> Callable[..., Any]:
        def timed(connection: Any) -> None:
            self._begin()
            function(connection)
            self._end(0, is_server=is_server)

        return timed

"""Writes what rounds come to in groups: one transaction for all that came in since the last.

With one device that is a transaction a trial. With a thousand, a commit per trial would be all
that a coordinator does; here commits take a fifth of its time at most, and grow instead.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session, sessionmaker

from records import measures
from records.measures import NewRecord
from records.storing import Stored

_REST_PER_COMMIT = 4.0


@dataclass(frozen=True)
class _Trial:
    new: NewRecord
    told: Callable[[Stored | None], None]


_Write = Callable[[Session], object]


class Journal:
    """Keeps the order in which it was told, but for trials, which come first; of one thread."""

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions
        self._waiting: list[_Trial | _Write] = []
        self._timer: asyncio.Handle | None = None
        self._free_at = 0.0
        self._error: Exception | None = None
        self._settling: asyncio.Future[None] | None = None

    def record(self, new: NewRecord, told: Callable[[Stored | None], None]) -> None:
        """Store a trial soon; ``told`` of what became of it, None if it was there already.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database was lost meanwhile.
        """
        self._add(_Trial(new, told))

    def write(self, change: _Write) -> None:
        """Make a change soon, after all trials and changes that were told before.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database was lost meanwhile.
        """
        self._add(change)

    def flush(self) -> None:
        """Write all that waits, now.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._raise_if_lost()
        chosen, self._waiting = self._waiting, []
        settling, self._settling = self._settling, None
        try:
            if chosen:
                self._write(chosen)
        except Exception as error:
            if settling is not None:
                settling.set_exception(error)
            raise
        if settling is not None:
            settling.set_result(None)

    async def settle(self) -> None:
        """Wait until all that was told is written, with whatever else is by then.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        self._raise_if_lost()
        if self._waiting:
            if self._settling is None:
                self._settling = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settling)

    def _write(self, chosen: Sequence[_Trial | _Write]) -> None:
        """Write trials in one go, then the changes, for no trial waits for one."""
        clock = asyncio.get_running_loop().time
        started = clock()
        trials = [each for each in chosen if isinstance(each, _Trial)]
        with self._sessions.begin() as session:
            found = measures.add_records(session, [each.new for each in trials]) if trials else []
            for change in chosen:
                if not isinstance(change, _Trial):
                    change(session)
        for trial, record in zip(trials, found, strict=True):
            trial.told(record)
        self._free_at = clock() + _REST_PER_COMMIT * (clock() - started)

    def _add(self, each: _Trial | _Write) -> None:
        self._raise_if_lost()
        self._waiting.append(each)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._free_at, loop.time()), self._flush_later)

    def _flush_later(self) -> None:
        self._timer = None
        try:
            self.flush()
        except Exception as error:  # whoever writes next is told
            self._error = error

    def _raise_if_lost(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

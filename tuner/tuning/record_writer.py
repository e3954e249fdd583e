"""Writes what rounds come to in groups: one transaction for all that came in since the last.

With one device that is a transaction a trial. With a thousand, a commit per trial would be all
that a coordinator does; here commits take a fifth of its time at most, and grow instead.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy.orm import Session, sessionmaker

from records import measure_records
from records.measure_records import NewRecord
from records.record_insert import Stored
from tuner.interrupts import Interrupted
from tuner.tuning.storage_retry import FATAL_DB_ERRORS

_REST_PER_COMMIT = 4.0

_LOG = logging.getLogger(__name__)


_Write = Callable[[Session], object]
_WriteAll = Callable[[Session, Sequence[Any]], object]


class _Trial(NamedTuple):
    new: NewRecord
    told: Callable[[Stored | None], None]
    owner: int | None


class _Change(NamedTuple):
    make: _Write
    owner: int | None


class _Part(NamedTuple):
    """What is written with others of its kind."""

    make: _WriteAll
    item: object
    owner: int | None


_Item = _Trial | _Part | _Change
_ORDER = (_Trial, _Part, _Change)
_Stored = tuple[_Trial, Stored | None]


class RecordWriter:
    """Trials come first, then what is gathered, then changes in their order; of one thread.

    What a job tells is its own: if it cannot be stored, that job is told and nobody else.
    """

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions
        self._waiting: list[_Item] = []
        self._timer: asyncio.Handle | None = None
        self._free_at = 0.0
        self._lost: Exception | None = None
        self._refused: dict[int, Exception] = {}
        self._settling: asyncio.Future[None] | None = None

    def record(
        self, new: NewRecord, told: Callable[[Stored | None], None], owner: int | None = None
    ) -> None:
        """Store a trial soon; ``told`` of what became of it, None if it was there already.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database was lost meanwhile.
            Exception: What the owner, a job, told before and the database refused.
        """
        self._add(_Trial(new, told, owner))

    def write(self, make: _Write, owner: int | None = None) -> None:
        """Make a change soon, after all trials and changes that were told before.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database was lost meanwhile.
            Exception: What the owner, a job, told before and the database refused.
        """
        self._add(_Change(make, owner))

    def gather(self, make: _WriteAll, item: object, owner: int | None = None) -> None:
        """Write something soon, in one call of ``make`` with all that it is to write by then.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database was lost meanwhile.
            Exception: What the owner, a job, told before and the database refused.
        """
        self._add(_Part(make, item, owner))

    def flush(self, owner: int | None = None) -> None:
        """Write all that waits, now.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
            Exception: What the owner, a job, told and the database refused.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._raise_if(None)
        chosen, self._waiting = self._waiting, []
        settling, self._settling = self._settling, None
        try:
            if chosen:
                self._write(chosen)
        except BaseException as error:
            if settling is not None:
                settling.set_exception(error if isinstance(error, Exception) else _Stopped())
            raise
        if settling is not None:
            settling.set_result(None)
        self._raise_if(owner)

    async def settle(self, owner: int | None = None) -> None:
        """Wait until all that was told is written, with whatever else is by then.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
            Exception: What the owner, a job, told and the database refused.
        """
        self._raise_if(owner)
        if self._waiting:
            if self._settling is None:
                self._settling = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settling)
        self._raise_if(owner)

    def forget(self, owner: int) -> None:
        """Forget what was refused of a job that has ended."""
        self._refused.pop(owner, None)

    def _write(self, chosen: Sequence[_Item]) -> None:
        """Write all in one transaction; what the database refuses, without the others.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            stored = self._write_together(chosen)
        except FATAL_DB_ERRORS:
            raise
        except Exception:
            _LOG.exception("what %d items say cannot be stored together", len(chosen))
            one_by_one = sorted(chosen, key=lambda each: _ORDER.index(type(each)))
            stored = [pair for each in one_by_one for pair in self._write_alone(each)]
        for trial, record in stored:
            trial.told(record)
        self._free_at = clock() + _REST_PER_COMMIT * (clock() - started)

    def _write_together(self, chosen: Sequence[_Item]) -> list[_Stored]:
        """Write trials in one go, then the changes, for no trial waits for one."""
        trials = [each for each in chosen if isinstance(each, _Trial)]
        gathered = _gathered(chosen)
        with self._sessions.begin() as session:
            found = (
                measure_records.add_records(session, [each.new for each in trials])
                if trials
                else []
            )
            for make, items in gathered.items():
                make(session, items)
            for change in chosen:
                if isinstance(change, _Change):
                    change.make(session)
        return list(zip(trials, found, strict=True))

    def _write_alone(self, each: _Item) -> list[_Stored]:
        try:
            return self._write_together([each])
        except FATAL_DB_ERRORS:
            raise
        except Exception as error:
            if each.owner is None:
                _LOG.exception("a change is lost")
            else:
                self._refused.setdefault(each.owner, error)
        return []

    def _add(self, each: _Item) -> None:
        self._raise_if(each.owner)
        self._waiting.append(each)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._free_at, loop.time()), self._flush_later)

    def _flush_later(self) -> None:
        self._timer = None
        try:
            self.flush()
        except Interrupted:
            pass  # it is raised again where the loop waits
        except Exception as error:  # whoever writes next is told
            self._lost = error

    def _raise_if(self, owner: int | None) -> None:
        if self._lost is not None:
            error, self._lost = self._lost, None
            raise error
        if owner is not None and owner in self._refused:
            raise self._refused.pop(owner)


def _gathered(chosen: Sequence[_Item]) -> dict[_WriteAll, list[object]]:
    gathered: dict[_WriteAll, list[object]] = defaultdict(list)
    for each in chosen:
        if isinstance(each, _Part):
            gathered[each.make].append(each.item)
    return gathered


class _Stopped(Exception):  # noqa: N818  nobody sees it: the run ends
    """Whoever waited waits in vain: the process is asked to stop."""

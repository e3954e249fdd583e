"""Write-behind queue between the rounds of all jobs and the database."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy.orm import Session, sessionmaker

from records import database, measure_records
from records.measure_records import NewRecord, StoredRecord
from tuner.interrupts import Interrupted
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS

# Pause after a commit, in durations of that commit.
_PAUSE_PER_COMMIT = 4.0
# Waiting items that end the pause. Nothing else happens during a commit: if items cost a fifth of
# the time, each pause would exceed the one before. A commit of fewer has hardly more than one trial
# of each round on a thousand devices, and pays for the rounds instead.
_MAX_BATCH = 4_000
_LOG = logging.getLogger(__name__)
Write = Callable[[Session], object]
GroupedWrite = Callable[[Session, Sequence[Any]], object]
OnStored = Callable[[StoredRecord | None], None]


class WritePolicy(Enum):
    """Point at which a :class:`~tuner.tuning.writing.record_writer.RecordWriter` commits.

    The policy follows the number of devices alone and is chosen in
    :meth:`for_devices`. It can change while a coordinator runs, when devices appear or vanish;
    writes that wait at that moment are committed under the new policy.

    **Ordering**

    The same under both policies: within one transaction trials are written first, then grouped
    items, then changes in the order of their submission. Transactions never overlap, and a write
    is never committed before one of the same kind that was submitted earlier.

    **Durability**

    Under ``IMMEDIATE`` everything that a job submitted is committed before its next pick is
    chosen. Under ``BATCHED`` it is committed with the next batch, while further rounds run. Under
    both, a round returns only after its trials are committed, so that a completed pick never
    lacks one, and on a CPU each trial is committed before the next is timed, because a commit
    would disturb the timing. A process that is killed loses what was submitted since the last
    commit; a resumed job spends those trials again.

    **Thread safety**

    None. Writers are used by the thread of the event loop alone; threads that load jobs or run
    calls hand their results to the loop first.
    """

    IMMEDIATE = "immediate"
    BATCHED = "batched"

    @classmethod
    def for_devices(cls, n_devices: int) -> "WritePolicy":
        """Return the policy of a coordinator that uses a number of devices.

        A commit per trial would take all the time of a coordinator of a thousand devices.
        """
        return cls.BATCHED if n_devices > 1 else cls.IMMEDIATE


class _Trial(NamedTuple):
    record: NewRecord
    on_stored: OnStored
    owner: int | None


class _Grouped(NamedTuple):
    write: GroupedWrite
    item: object
    owner: int | None


class _Change(NamedTuple):
    write: Write
    owner: int | None


_Item = _Trial | _Grouped | _Change


_ORDER = (_Trial, _Grouped, _Change)


_StoredTrial = tuple[_Trial, StoredRecord | None]


class RecordWriter:
    """Queue of writes that are committed together, as a :class:`WritePolicy` says.

    **Ordering and durability**

    The policy states them; :meth:`flush` and :meth:`wait_flushed` are its only commit points
    besides the timer that every submission starts.

    **Ownership of errors**

    Every write may name its owner, a job. If the database refuses a transaction, its items are
    written one by one; a refused item is raised to its owner at the owner's next call, and to no
    other job. A refused item without an owner is logged. Errors in
    :data:`~tuner.tuning.writing.storage_retry.FATAL_DB_ERRORS` mean that the database is lost and
    are raised to the next caller, of any owner.

    **Thread safety**

    None: all calls come from the thread of the event loop.

    Attributes:
        policy: Policy for the devices of the moment; :class:`~tuner.tuning.context.TuningContext`
            sets it.
    """

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self.policy = WritePolicy.IMMEDIATE
        self._sessions = sessions
        self._waiting: list[_Item] = []
        self._timer: asyncio.Handle | None = None
        self._paused_until = 0.0
        self._fatal_error: Exception | None = None
        self._refused: dict[int, Exception] = {}
        self._flushed: asyncio.Future[None] | None = None

    def record(self, record: NewRecord, on_stored: OnStored, owner: int | None = None) -> None:
        """Submit a trial.

        Args:
            record: Trial to insert.
            on_stored: Called after the commit with the stored record, or with None if the task
                already had a record of this trace.
            owner: Job that receives the error if the database refuses the trial.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database was lost since the last call.
            Exception: Error of an earlier write of the owner that the database refused.
        """
        self._submit(_Trial(record, on_stored, owner))

    def write(self, write: Write, owner: int | None = None) -> None:
        """Submit a change, written after every trial and change submitted before.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database was lost since the last call.
            Exception: Error of an earlier write of the owner that the database refused.
        """
        self._submit(_Change(write, owner))

    def write_grouped(self, write: GroupedWrite, item: object, owner: int | None = None) -> None:
        """Submit an item; one call of ``write`` receives all items that wait for it.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database was lost since the last call.
            Exception: Error of an earlier write of the owner that the database refused.
        """
        self._submit(_Grouped(write, item, owner))

    def flush(self, owner: int | None = None) -> None:
        """Commit everything that waits.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
            Exception: Error of a write of the owner that the database refused.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._raise_pending(None)
        items, self._waiting = self._waiting, []
        flushed, self._flushed = self._flushed, None
        try:
            if items:
                self._commit(items)
        except BaseException as error:
            if flushed is not None:
                flushed.set_exception(error if isinstance(error, Exception) else _Stopped())
            raise
        if flushed is not None:
            flushed.set_result(None)
        self._raise_pending(owner)

    def flush_if_immediate(self, owner: int | None = None) -> None:
        """Commit everything that waits under the immediate policy; else leave it to the timer.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
            Exception: Error of a write of the owner that the database refused.
        """
        if self.policy is WritePolicy.IMMEDIATE:
            self.flush(owner)

    async def wait_flushed(self, owner: int | None = None) -> None:
        """Return once everything submitted so far is committed.

        Under the immediate policy that is now; under the batched one, with the next batch.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
            Exception: Error of a write of the owner that the database refused.
        """
        self.flush_if_immediate(owner)
        self._raise_pending(owner)
        if self._waiting:
            if self._flushed is None:
                self._flushed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._flushed)
        self._raise_pending(owner)

    def drop_errors(self, owner: int) -> None:
        """Drop the error that a job which has ended did not collect."""
        self._refused.pop(owner, None)

    def _commit(self, items: Sequence[_Item]) -> None:
        """Write items in one transaction, or one by one if the database refuses some.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            stored = self._write_together(items)
        except FATAL_DB_ERRORS:
            raise
        except Exception:
            _LOG.exception("%d writes cannot be stored together", len(items))
            one_by_one = sorted(items, key=lambda item: _ORDER.index(type(item)))
            stored = [pair for item in one_by_one for pair in self._write_alone(item)]
        for trial, record in stored:
            trial.on_stored(record)
        self._paused_until = clock() + _PAUSE_PER_COMMIT * (clock() - started)

    def _write_together(self, items: Sequence[_Item]) -> list[_StoredTrial]:
        """Write items in one transaction, trials first because no trial depends on a change."""
        trials = [item for item in items if isinstance(item, _Trial)]
        groups = _group_items(items)
        stored: list[StoredRecord | None] = []
        with self._sessions.begin() as session:
            if len(trials) == len(items):
                # A round that lost some in a power failure measures them again; the change that
                # ends it waits for the disk.
                database.defer_sync(session)
            if trials:
                stored = measure_records.add_records(session, [trial.record for trial in trials])
            for write, group in groups.items():
                write(session, group)
            for item in items:
                if isinstance(item, _Change):
                    item.write(session)
        return list(zip(trials, stored, strict=True))

    def _write_alone(self, item: _Item) -> list[_StoredTrial]:
        try:
            return self._write_together([item])
        except FATAL_DB_ERRORS:
            raise
        except Exception as error:
            if item.owner is None:
                _LOG.exception("a change is lost")
            else:
                self._refused.setdefault(item.owner, error)
        return []

    def _submit(self, item: _Item) -> None:
        self._raise_pending(item.owner)
        self._waiting.append(item)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            at = max(self._paused_until, loop.time())
            self._timer = loop.call_at(at, self._flush_on_timer)
        elif len(self._waiting) == _MAX_BATCH:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_soon(self._flush_on_timer)

    def _flush_on_timer(self) -> None:
        self._timer = None
        try:
            self.flush()
        except Interrupted:
            pass  # it is raised again where the loop waits
        except Exception as error:  # the next caller receives it
            self._fatal_error = error

    def _raise_pending(self, owner: int | None) -> None:
        if self._fatal_error is not None:
            error, self._fatal_error = self._fatal_error, None
            raise error
        if owner is not None and owner in self._refused:
            raise self._refused.pop(owner)


def _group_items(items: Sequence[_Item]) -> dict[GroupedWrite, list[object]]:
    groups: dict[GroupedWrite, list[object]] = defaultdict(list)
    for item in items:
        if isinstance(item, _Grouped):
            groups[item.write].append(item.item)
    return groups


class _Stopped(Exception):  # noqa: N818  it is never shown: the run ends
    """Error of those who wait for a commit when the process is asked to stop."""

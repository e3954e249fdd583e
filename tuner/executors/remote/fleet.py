"""Devices and builders that serve over HTTPS: calls wait in the database for their processes.

The API hands calls to the processes of machines and stores what they answer. A thread of the
coordinator stores new calls, reads answers, and loses the calls of machines that are offline.
"""

import hashlib
import logging
import math
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.errors import RecordsError
from records.service import remote_devices
from records.service.service_models import RemoteCall, RemoteDevice
from tuner.devices.runners.base import Runner
from tuner.engines.base import BuildRequest
from tuner.errors import DeviceLost, TunerError, WorkerLost, WorkError, summary
from tuner.executors import file_transfer
from tuner.executors.remote import wire
from tuner.settings import Settings
from tuner.workers import messages
from tuner.workers.base import FutureCall
from tuner.workers.confinement.sandbox_paths import scratch_folder
from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from datetime import datetime

_DESCRIBE_TIMEOUT_SECS = 300.0
# Calls that one device may have at a time, so that a slow network does not keep it waiting.
_N_AHEAD = 15
# Builds that a machine may have for each of its builders, and in all.
_MAX_BUILDS, _MAX_LEASED = 3, 64
# Time after the loss of a build in which the coordinator's machine builds alone.
_WARY_SECS = 5.0
# Interval between looks at the database, with and without open calls.
_POLL_INTERVAL_SECS, _IDLE_INTERVAL_SECS = 0.05, 1.0
# Time without an answer, beyond the time-out of a call, after which a device is put aside. It
# fetches files before, and ends by itself when it makes no progress for two minutes.
_MAX_STALL_SECS = 300.0
# Files that are kept for further calls.
_MAX_FILES = 64

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class _OpenCall:
    """A call whose future waits for its answer."""

    runner: "RemoteRunner | RemoteBuilders"
    function: str
    args: tuple[Any, ...]
    timeout_secs: float
    future: Future[Any]
    files: tuple[str, ...] = ()


class RemoteRunner:
    """A :class:`tuner.devices.runners.base.Runner` of one remote device."""

    shares_cores = False
    n_ahead = _N_AHEAD

    def __init__(self, fleet: "RemoteFleet", name: str) -> None:
        self.name = name
        self.meter = UtilisationMeter()
        #: Time of its last answer, or of the first call after a pause, by the monotonic clock.
        self.progress = 0.0
        self._fleet = fleet

    def describe(self, spec: str) -> FutureCall:
        """Resolve a target on the device."""
        return self._fleet.submit(self, "describe_target", (spec,), _DESCRIBE_TIMEOUT_SECS)

    def measure(self, function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """Call a function of the engine on the device."""
        return self.meter.watch(self._fleet.submit(self, function, args, timeout_secs))

    def close(self) -> None:
        """Do nothing: the process of the device serves the next coordinator."""


@dataclass(eq=False)
class RemoteBuilders:
    """Builders of one machine.

    Attributes:
        name: Name of the process that they belong to.
        count: Builds that it does at a time.
        n_builds: Builds that wait for it or are under way.
        progress: As of a :class:`RemoteRunner`.
    """

    name: str
    count: int
    n_builds: int = 0
    progress: float = 0.0


class RemoteFleet:
    """A :class:`tuner.devices.runners.base.Fleet` of all devices that are registered.

    The builders that are registered build candidates beside those of the coordinator's machine.

    Args:
        settings: Data directory, which the API reads, too.
        sessions: Sessions of this coordinator.

    Raises:
        OSError: If the folder of files cannot be made.
        LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
    """

    def __init__(self, settings: Settings, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions
        # The others have the only write lock of SQLite.
        self._readers = database.sessions(sessions.kw["bind"], read_only=True)
        self._files = _Files(settings.data_dir)
        self._runners: dict[str, RemoteRunner] = {}
        self._builders: dict[str, RemoteBuilders] = {}
        # Time of the last loss of a build, by the monotonic clock.
        self._lost = -math.inf
        self._new: deque[tuple[str, _OpenCall]] = deque()
        self._open: dict[str, _OpenCall] = {}
        self._ended: set[str] = set()
        # Ids order calls, and are of this coordinator alone.
        run = uuid.uuid4().hex
        self._ids = (f"{run}-{number:012}" for number in count())
        self._seen: dict[str, tuple[datetime, float]] = {}
        # Keys of the processes that did not answer, by device.
        self._aside: dict[str, str] = {}
        self._is_closed = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        with sessions.begin() as session:
            remote_devices.remove_all_calls(session)
        self._exchange()
        self._thread = threading.Thread(target=self._run, name="remote-devices", daemon=True)
        self._thread.start()

    @property
    def runners(self) -> Sequence[Runner]:
        """Runners of the devices that are online."""
        return list(self._runners.values())

    @property
    def n_builders(self) -> int:
        """Number of builds that the machines that are online do at a time."""
        return sum(builders.count for builders in self._builders.values())

    def build(self, request: BuildRequest, timeout_secs: float, load: float) -> FutureCall | None:
        """Have a machine build a candidate; see :func:`tuner.executors.remote.wire.unpack_build`.

        Args:
            timeout_secs: Time limit.
            load: Builds of each builder of the coordinator.

        Returns:
            None if all machines have more work for each builder than the coordinator, or a build
            was lost lately, so that what is repeated is built here.
        """
        free = min(
            self._builders.values(), key=lambda each: each.n_builds / each.count, default=None
        )
        is_wary = time.monotonic() - self._lost < _WARY_SECS
        if free is None or is_wary or free.n_builds >= min(_MAX_BUILDS * free.count, _MAX_LEASED):
            return None
        if free.n_builds / free.count >= load:
            return None
        with self._lock:
            free.n_builds += 1
        call = self.submit(free, "build", (request,), timeout_secs)
        call.future.add_done_callback(lambda _: self._end_build(free))
        return call

    def submit(
        self,
        runner: RemoteRunner | RemoteBuilders,
        function: str,
        args: tuple[Any, ...],
        timeout_secs: float,
    ) -> FutureCall:
        """Have a machine call a function of the engine."""
        call = _OpenCall(runner, function, args, timeout_secs, Future())
        self._new.append((next(self._ids), call))
        self._wake.set()
        return FutureCall(call.future)

    def _end_build(self, builders: RemoteBuilders) -> None:
        with self._lock:
            builders.n_builds -= 1

    def close(self) -> None:
        """Forget all calls; their futures are lost."""
        self._is_closed = True
        self._wake.set()
        self._thread.join()
        self._lose_all(WorkerLost("its executor was closed"))

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(_POLL_INTERVAL_SECS if self._open else _IDLE_INTERVAL_SECS)
            self._wake.clear()
            try:
                self._exchange()
            except (SQLAlchemyError, RecordsError) as error:
                # The coordinator meets it, too, and ends if it lasts.
                _LOG.warning("remote devices wait: %s", error)
                time.sleep(_IDLE_INTERVAL_SECS)
            except Exception as error:
                _LOG.exception("remote devices failed")
                self._lose_all(DeviceLost(f"remote devices failed: {summary(error)}"))
                time.sleep(_IDLE_INTERVAL_SECS)

    def _lose_all(self, error: Exception) -> None:
        """End all calls with an error."""
        while self._new:
            self._new.popleft()[1].future.set_exception(error)
        for call_id in list(self._open):
            self._end(call_id, error)

    def _exchange(self) -> None:
        """Store new calls, and read what has become of the others."""
        rows = []
        for _ in range(len(self._new)):
            call_id, call = self._new.popleft()
            try:
                rows.append(self._row(call_id, call))
            except Exception as error:
                call.future.set_exception(error)
            else:
                if not any(each.runner is call.runner for each in self._open.values()):
                    call.runner.progress = time.monotonic()
                self._open[call_id] = call
        ended, self._ended = self._ended, set()
        try:
            if rows or ended:
                with self._sessions.begin() as session:
                    # Calls are worth nothing after a power failure.
                    database.defer_sync(session)
                    session.add_all(rows)
                    remote_devices.remove_calls(session, ended)
        except BaseException:
            self._ended |= ended
            for row in reversed(rows):
                call = self._open.pop(row.id)
                self._files.release(call.files)
                self._new.appendleft((row.id, call))
            raise
        with self._readers() as session:
            devices = [row for row in remote_devices.devices(session) if row.gpu is None]
            calls = remote_devices.leased(session) if self._open else ()
        keys = {device.name: device.key for device in devices}
        for row in calls:
            self._settle(row, keys.get(row.device))
        self._update(devices)

    def _row(self, call_id: str, call: _OpenCall) -> RemoteCall:
        """Return the row of a call whose files are ready.

        Raises:
            OSError: If a file cannot be read or written.
        """
        paths = self._files.add(call.args)
        call.files = tuple(paths.values())
        return RemoteCall(
            id=call_id,
            device=call.runner.name,
            function=call.function,
            arguments=wire.encode_arguments(file_transfer.rename(call.args, paths)),
            files=list(call.files),
            timeout_secs=call.timeout_secs,
        )

    def _settle(self, row: RemoteCall, key: str | None) -> None:
        """End a call that was answered, or whose process was replaced by another one."""
        call = self._open.get(row.id)
        if call is None:
            return
        if row.answer is not None:
            try:
                value = messages.decode(row.answer, wire.answer_type(call.function))
            except (TunerError, OSError) as error:
                self._end(row.id, error)
            except messages.GarbageError as error:
                self._end(row.id, WorkError(f"{row.device} sent garbage: {error}"))
            else:
                self._end(row.id, None, value)
        elif row.key != key and key is not None:
            self._end(row.id, WorkerLost(f"the process of {row.device} was started again"))

    def _end(self, call_id: str, error: Exception | None, value: Any = None) -> None:
        call = self._open.pop(call_id)
        self._ended.add(call_id)
        call.runner.progress = time.monotonic()
        if isinstance(call.runner, RemoteBuilders) and isinstance(error, WorkerLost):
            # As if a builder of this machine had been killed: the call is made again.
            error = WorkerLost(str(error), crashed=error.crashed)
            self._lost = call.runner.progress
        self._files.release(call.files)
        if error is None:
            call.future.set_result(value)
        else:
            call.future.set_exception(error)

    def _update(self, devices: Sequence[RemoteDevice]) -> None:
        """Have a runner for each device that is alive, or builders; other calls are lost."""
        self._put_aside(keys := {device.name: device.key for device in devices})
        alive = {device.name for device in devices if self._is_alive(device)} - self._aside.keys()
        self._seen = {name: seen for name, seen in self._seen.items() if name in keys}
        present = {**self._runners, **self._builders}
        for name in present.keys() - alive:
            _LOG.warning("%s is offline", name)
        for call_id, call in list(self._open.items()):
            if call.runner.name not in alive:
                state = "does not answer" if call.runner.name in self._aside else "is offline"
                self._end(call_id, DeviceLost(f"device {call.runner.name} {state}"))
        for name in alive - present.keys():
            _LOG.info("%s is online", name)
        counts = {each.name: each.n_builders for each in devices if each.name in alive}
        self._runners = {
            name: self._runners.get(name) or RemoteRunner(self, name)
            for name, count in counts.items()
            if not count
        }
        self._builders = {
            name: self._builders.get(name) or RemoteBuilders(name, count)
            for name, count in counts.items()
            if count
        }
        for name, builders in self._builders.items():
            builders.count = counts[name]

    def _put_aside(self, keys: Mapping[str, str]) -> None:
        """Put the devices aside whose first call has no answer, until their processes end."""
        self._aside = {name: key for name, key in self._aside.items() if keys.get(name) == key}
        firsts: dict[RemoteRunner | RemoteBuilders, _OpenCall] = {}
        for call in self._open.values():
            firsts.setdefault(call.runner, call)
        for runner, call in firsts.items():
            secs = call.timeout_secs + _MAX_STALL_SECS
            if runner.name in keys and time.monotonic() - runner.progress > secs:
                _LOG.error("%s did not answer for %.0f s; start it again", runner.name, secs)
                self._aside[runner.name] = keys[runner.name]

    def _is_alive(self, device: RemoteDevice) -> bool:
        """Return whether a device is alive by the clock of this process: hosts' clocks differ."""
        now = time.monotonic()
        heartbeat, since = self._seen.get(device.name, (None, 0.0))
        if heartbeat != device.heartbeat:
            if heartbeat is None and not remote_devices.is_alive(device):
                since = now - remote_devices.OFFLINE_AFTER.total_seconds()
            else:
                since = now
            self._seen[device.name] = (device.heartbeat, since)
        return now - since < remote_devices.OFFLINE_AFTER.total_seconds()


class _Files:
    """Files of open calls in the data directory, under the digests of their contents."""

    def __init__(self, data_dir: Path) -> None:
        self._artifacts = f"{scratch_folder(data_dir)}/"
        self._folder = data_dir / wire.FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.iterdir():
            left.unlink(missing_ok=True)
        # Users of each file; the one that was used last is the last.
        self._n_users: OrderedDict[str, int] = OrderedDict()
        self._digests: dict[tuple[str, int, int], str] = {}

    def add(self, args: tuple[Any, ...]) -> dict[str, str]:
        """Write the files that the arguments of a call name; return the digest of each path.

        Raises:
            OSError: If one cannot be read or written.
        """
        texts = {text for text in file_transfer.texts_in(args) if text.startswith(self._artifacts)}
        requests = file_transfer.requests_in(args)
        texts |= {path for request in requests for path in request.references}
        digests = {text: self._digest(Path(text)) for text in sorted(texts)}
        for digest in digests.values():
            self._n_users[digest] = self._n_users.get(digest, 0) + 1
        return digests

    def release(self, digests: Sequence[str]) -> None:
        """Count the end of a call; remove the files that were not used for the longest time."""
        for digest in digests:
            self._n_users[digest] -= 1
            self._n_users.move_to_end(digest)
        for digest in list(self._n_users):
            if len(self._n_users) <= _MAX_FILES:
                break
            if not self._n_users[digest]:
                del self._n_users[digest]
                (self._folder / digest).unlink(missing_ok=True)

    def _digest(self, path: Path) -> str:
        """Return the digest of a file, which is written unless it is there."""
        stat = path.stat()
        known = (str(path), stat.st_size, stat.st_mtime_ns)
        digest = self._digests.get(known)
        if digest is None or digest not in self._n_users:
            content = wire.pack(path)
            digest = hashlib.sha256(content).hexdigest()
            partial = self._folder / f"{digest}.partial"
            partial.write_bytes(content)
            partial.chmod(0o644)  # the API may be another user
            partial.replace(self._folder / digest)
            if path.is_file():
                self._digests = {
                    key: it for key, it in self._digests.items() if it in self._n_users
                }
                self._digests[known] = digest
        return digest

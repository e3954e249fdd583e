"""Locks of keys that are being made: one maker a key, and none that outlives its owner.

A lock is a file with the name of its owner and a count that the owner raises as long as it
lives. It appears complete and at once, by a hard link. Everything that is kept in the store
is moved into place whole, so a lock that fails costs work done twice and nothing else.
"""

import contextlib
import fcntl
import json
import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tuner.build_cache.lock_files import Seen, count, create, linked, look, try_flock
from tuner.build_cache.process_identity import this_process
from tuner.interrupts import waiting

_BEAT_SECS = 2.0
# Without a beat for so long an owner counts as dead, whatever else is known of it.
STALE_SECS = 30.0
_GUARD_SECS = 1.0
_PAUSE_SECS = (0.005, 0.1)


class Lock:
    """A lock that this process holds, until it is released or the process ends."""

    def __init__(self, locks: "Locks", path: Path, descriptor: int, token: str) -> None:
        self.path = path
        self.token = token
        self.descriptor = descriptor
        self._locks = locks
        self._n_beats = 0
        self._mine = threading.Lock()
        _beats.add(self)

    def beat(self) -> None:
        """Show that the owner lives."""
        with self._mine, contextlib.suppress(OSError):
            if self.descriptor >= 0:
                self._n_beats += 1
                os.pwrite(self.descriptor, count(self._n_beats), 0)

    def release(self) -> None:
        """Let others have it; a second time is allowed."""
        _beats.discard(self)
        with self._mine:
            if self.descriptor >= 0:
                # A file that stays says nothing: the kernel knows that nobody holds it.
                with contextlib.suppress(OSError):
                    self._locks.remove(self.path, self.token)
            self.forget()

    def disown(self) -> None:
        """In a forked child: the lock is the parent's, and so are its threads."""
        self._mine = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Close the file and leave it where it is."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.release()


class Locks:
    """The locks of one store.

    Args:
        folder: Where the lock files are.
        scratch: Where files may be written before they are linked into ``folder``.
        stale_secs: An owner whose count stands still for so long, by our own clock, is dead.
    """

    def __init__(self, folder: Path, scratch: Path, stale_secs: float = STALE_SECS) -> None:
        self._folder = folder
        self._scratch = scratch
        self._stale_secs = stale_secs
        self._watched: dict[Path, tuple[str, str, float]] = {}

    def take(self, name: str) -> Lock | None:
        """Take a lock; None if a live owner has it.

        Raises:
            OSError: If the store cannot be written.
        """
        path = self._folder / f"{name}.lock"
        while True:
            try:
                return self._create(path)
            except FileExistsError:
                if not self._clear(path):
                    return None

    def is_held(self, name: str) -> bool:
        """Tell whether a live owner has a lock; that of a dead one is removed."""
        path = self._folder / f"{name}.lock"
        seen = look(path)
        if seen is None:
            self._watched.pop(path, None)
            return False
        if self._is_alive(path, seen):
            return True
        with contextlib.suppress(OSError):
            self.remove(path, seen.token)
        return False

    def remove(self, path: Path, token: str) -> None:
        """Remove a lock file if it still is the one of ``token``."""
        with self._guarded():
            seen = look(path)
            if seen is not None and seen.token == token:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
        self._watched.pop(path, None)

    def _create(self, path: Path) -> Lock:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._scratch.mkdir(parents=True, exist_ok=True)
        owner, token = this_process(), secrets.token_hex(8)
        beside = self._scratch / f"{owner.tag}.{token}.lock"
        content = count(0) + b"\n" + json.dumps({"token": token, **asdict(owner)}).encode()
        try:
            descriptor = create(beside, content)
            if not linked(beside, path):
                # An instant without its content shows; there is no better way here.
                os.close(descriptor)
                descriptor = create(path, content)
        finally:
            beside.unlink(missing_ok=True)
        return Lock(self, path, descriptor, token)

    def _clear(self, path: Path) -> bool:
        """Make way where nobody is; False if a live owner has the lock."""
        seen = look(path)
        if seen is not None and self._is_alive(path, seen):
            return False
        if seen is not None:
            self.remove(path, seen.token)
        return True

    def _is_alive(self, path: Path, seen: Seen) -> bool:
        if seen.owner is not None:
            if seen.owner.is_gone:
                return False
            # One kernel knows all of its locks; another one may not even have been told.
            if seen.owner.is_of_this_kernel and seen.free:
                return False
        return not self._is_stale(path, seen)

    def _is_stale(self, path: Path, seen: Seen) -> bool:
        now = time.monotonic()
        token, number, since = self._watched.setdefault(path, (seen.token, seen.count, now))
        if (token, number) != (seen.token, seen.count):
            self._watched[path] = (seen.token, seen.count, now)
            return False
        return now - since > self._stale_secs

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Keep others from removing locks: what one judged dead, another may have replaced."""
        descriptor = os.open(self._folder / ".guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            deadline = time.monotonic() + _GUARD_SECS
            # Whoever is stopped in here must not stop the others: they go on without it.
            while try_flock(descriptor, fcntl.LOCK_EX) is False and time.monotonic() < deadline:
                time.sleep(0.002)
            yield
        finally:
            os.close(descriptor)


class Pauses:
    """Sleeps between looks at something that others do: short at first, never in step."""

    def __init__(self) -> None:
        self._secs = _PAUSE_SECS[0]

    def sleep(self) -> None:
        """Sleep a little; the user may end it, see :mod:`tuner.interrupts`."""
        is_main = threading.current_thread() is threading.main_thread()
        with waiting() if is_main else contextlib.nullcontext():
            time.sleep(self._secs * random.uniform(0.5, 1.0))
        self._secs = min(self._secs * 1.5, _PAUSE_SECS[1])


class _Beats:
    """The thread that raises the counts of all locks of this process; none without locks."""

    def __init__(self) -> None:
        self._start_anew()
        os.register_at_fork(after_in_child=self._after_fork)

    def _start_anew(self) -> None:
        self._locks: weakref.WeakSet[Lock] = weakref.WeakSet()
        # A lock may be collected, and leave, while this thread is in here.
        self._guard = threading.RLock()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def _after_fork(self) -> None:
        inherited = list(self._locks)
        self._start_anew()
        for lock in inherited:
            # Held open here, it would outlive the process that owns it.
            lock.disown()

    def add(self, lock: Lock) -> None:
        with self._guard:
            self._locks.add(lock)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tuner-locks", daemon=True)
                self._thread.start()

    def discard(self, lock: Lock) -> None:
        with self._guard:
            self._locks.discard(lock)

    def _run(self) -> None:
        while True:
            self._wake.wait(_BEAT_SECS)
            with self._guard:
                held = list(self._locks)
                if not held:
                    self._thread = None
                    return
            for lock in held:
                lock.beat()


_beats = _Beats()

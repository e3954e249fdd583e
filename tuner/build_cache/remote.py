"""The remote tier of the cache: entries that machines share, at any URL that fsspec knows."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.callbacks import Callback

from tuner.build_cache import headers, packing
from tuner.build_cache.entries import verify_blob_file
from tuner.build_cache.headers import DamagedEntryError, NewerFormatError
from tuner.build_cache.keys import Key
from tuner.build_cache.local import LAYOUT
from tuner.build_cache.packing import Packed
from tuner.errors import RequestError, summary
from tuner.library.signatures import NO_POLICY, SignaturePolicy, Unsigned

TIMEOUT_SECS = 5.0
PAUSE_SECS = 60.0
# A slower store counts as unavailable.
_MIN_BYTES_PER_SEC = 1e6
# File systems in which a file appears whole or not at all; in others it is written and renamed.
_ATOMIC_PROTOCOLS = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"}
)


@dataclass(frozen=True)
class _Store:
    """A file system of fsspec, and the root of the entries in it."""

    files: Any
    root: str

    @property
    def is_atomic(self) -> bool:
        """True if a file appears whole or not at all."""
        protocol = self.files.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        return bool(names & _ATOMIC_PROTOCOLS)


class RemoteTier:
    """Entries under the names that they have in the local tier.

    A failure is a miss with a warning. A store that fails or is slow is not used for a while, and
    a store that cannot be written is only read.

    Args:
        url: URL of the store; credentials come from the configuration and environment of fsspec.
        warn: Receives each problem.
        signatures: Signatures that entries get and need.
        timeout_secs: Longest time without progress, plus a second per megabyte.
        pause_secs: Time after a failure in which the store is not used.

    Raises:
        RequestError: If the file system is unknown, or a package that it needs is missing.
    """

    def __init__(
        self,
        url: str,
        warn: Callable[[str], None],
        signatures: SignaturePolicy = NO_POLICY,
        *,
        timeout_secs: float = TIMEOUT_SECS,
        pause_secs: float = PAUSE_SECS,
    ) -> None:
        self.url = url
        self._warn = warn
        self._signatures = signatures
        self._timeout_secs = timeout_secs
        self._pause_secs = pause_secs
        self._paused_until = -float("inf")
        self._is_writable = True
        protocol = fsspec.core.split_protocol(self.url)[0] or "file"
        try:
            fsspec.get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:
            raise RequestError(f"cache_remote {self.url}: {summary(error)}") from error

    def fetch(self, key: Key, folder: Path) -> Packed | None:
        """Copy an entry into a folder and verify it; a damaged one is removed from the store.

        One whose signature is refused stays there: it may be good for others.
        """
        if self._is_paused():
            return None
        try:
            return self._fetch(key, folder)
        except FileNotFoundError:
            return None
        except NewerFormatError as error:
            self._warn(f"{self._name(key)} is not used: {error}")
        except Unsigned as error:
            self._warn(f"{self._name(key)} is refused: {error}")
        except DamagedEntryError as error:
            self._warn(f"{self._name(key)} is damaged and is dropped: {error}")

            def work(_progress: Callback) -> None:
                self._open().files.rm_file(self._path(key, key.digest))

            # If it cannot be removed, the next upload replaces it.
            with contextlib.suppress(Exception):
                self._run(work)
        except Exception as error:
            self._pause("read", error)
        return None

    def send(self, packed: Packed, folder: Path) -> None:
        """Copy an entry to the store, by way of a folder: blobs and signature first."""
        if self._is_paused() or not self._is_writable:
            return
        key = packed.header.key
        try:
            for name, path in packed.blobs.items():
                blob = headers.blob_name(key.digest, packed.header.files[name])
                self._upload(path, self._path(key, blob))
            signature = self._signatures.sign("entry", packed.data)
            if signature is not None:
                name = headers.signature_name(key.digest, packed.data)
                (folder / name).write_bytes(signature)
                self._upload(folder / name, self._path(key, name))
            entry = folder / key.digest
            entry.write_bytes(packed.data)
            self._upload(entry, self._path(key, key.digest))
        except (PermissionError, NotImplementedError) as error:
            self._is_writable = False
            self._warn(f"{self.url} is only read: {summary(error)}")
        except Exception as error:
            self._pause("write", error)

    def _fetch(self, key: Key, folder: Path) -> Packed:
        entry = folder / key.digest
        self._download(self._path(key, key.digest), entry)
        data = entry.read_bytes()
        if self._signatures.checks:
            self._signatures.check("entry", data, self._signature(key, data, folder))
        header, _ = packing.unpack(data, key)
        blobs = {}
        for name, file in header.blobs.items():
            blob = headers.blob_name(key.digest, file)
            blobs[name] = folder / blob
            try:
                self._download(self._path(key, blob), blobs[name], file.n_bytes)
            except FileNotFoundError as error:
                raise DamagedEntryError(f"{name} is missing") from error
            verify_blob_file(blobs[name], name, file)
        return Packed(header, data, blobs)

    def _signature(self, key: Key, data: bytes, folder: Path) -> bytes | None:
        name = headers.signature_name(key.digest, data)
        try:
            self._download(self._path(key, name), folder / name)
        except FileNotFoundError:
            return None
        return (folder / name).read_bytes()

    def _download(self, path: str, file: Path, n_bytes: int = 0) -> None:
        def work(progress: Callback) -> None:
            self._open().files.get_file(path, str(file), callback=progress)

        self._run(work, n_bytes)

    def _upload(self, file: Path, path: str) -> None:
        def work(progress: Callback) -> None:
            store = self._open()
            if store.is_atomic:
                store.files.put_file(str(file), path, callback=progress)
                return
            part = f"{path}.{time.monotonic_ns()}.part"
            store.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            store.files.put_file(str(file), part, callback=progress)
            store.files.mv(part, path)

        self._run(work, file.stat().st_size)

    def _run(self, work: Callable[[Callback], None], n_bytes: int = 0) -> None:
        """Run work in a thread of its own, as long as it makes progress.

        Raises:
            TimeoutError: If it makes none; the thread is left to itself.
        """
        progress, failure = _Progress(), list[BaseException]()

        def run() -> None:
            try:
                work(progress)
            except BaseException as error:
                failure.append(error)
            progress.done.set()

        timeout_secs = self._timeout_secs + n_bytes / _MIN_BYTES_PER_SEC
        threading.Thread(target=run, name="tuner-remote", daemon=True).start()
        while not progress.done.wait(0.05 if timeout_secs < 1.0 else 0.5):
            if time.monotonic() - progress.moved > timeout_secs:
                raise TimeoutError(f"no answer within {timeout_secs:.2g} s")
        if failure:
            raise failure[0]

    def _open(self) -> _Store:
        # For each thread and process on its own: fsspec caches the connections that it can share.
        files, root = fsspec.core.url_to_fs(self.url)
        return _Store(files, root.rstrip("/"))

    def _path(self, key: Key, name: str) -> str:
        return "/".join((self._open().root, LAYOUT, key.kind, key.digest[:2], name))

    def _name(self, key: Key) -> str:
        return f"{self.url}: the entry {key.digest[:12]} of {key.title or key.kind}"

    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def _pause(self, what: str, error: Exception) -> None:
        self._paused_until = time.monotonic() + self._pause_secs
        self._warn(
            f"cannot {what} {self.url}: {summary(error)}; "
            f"it is not used for {self._pause_secs:.0f} s"
        )


class _Progress(Callback):  # type: ignore[misc]  # fsspec has no types
    """Records when a transfer last made progress."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = time.monotonic()
        self.done = threading.Event()

    def relative_update(self, inc: int = 1) -> None:
        """Record a transfer of more bytes; fsspec calls this."""
        self.moved = time.monotonic()
        super().relative_update(inc)

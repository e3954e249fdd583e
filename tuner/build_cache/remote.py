"""The remote tier of the cache: a store of entries that machines share, at any URL fsspec knows."""

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
from tuner.build_cache.headers import Damaged, Newer
from tuner.build_cache.keys import Key
from tuner.build_cache.local import LAYOUT
from tuner.build_cache.packing import Packed
from tuner.errors import RequestError, summary

TIMEOUT_SECS = 5.0
REST_SECS = 60.0
# A store slower than this is of no use.
_BYTES_PER_SEC = 1e6
# In these a file appears whole or not at all; elsewhere it is renamed when it is.
_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"})


@dataclass(frozen=True)
class _Store:
    """A file system of fsspec's, and where in it the entries are."""

    files: Any
    root: str

    @property
    def is_whole(self) -> bool:
        """Whether a file appears in it whole or not at all."""
        protocol = self.files.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        return bool(names & _WHOLE)


class RemoteTier:
    """Entries under the names that they have in the local tier.

    Whatever fails is warned about and is a miss; a store that fails or is slow is left alone
    for a while, and one that cannot be written is only read.

    Args:
        url: Where it is; fsspec's own configuration and environment say how to get there.
        warn: Told of everything that went wrong.
        timeout_secs: It may show no progress for so long, and a second for each megabyte.
        rest_secs: After a failure it is not asked for so long.

    Raises:
        RequestError: If there is no such file system, or what it needs is not installed.
    """

    def __init__(
        self,
        url: str,
        warn: Callable[[str], None],
        *,
        timeout_secs: float = TIMEOUT_SECS,
        rest_secs: float = REST_SECS,
    ) -> None:
        self.url = url
        self._warn = warn
        self._timeout_secs = timeout_secs
        self._rest_secs = rest_secs
        self._rests_until = -float("inf")
        self._is_writable = True
        self._check()

    def fetch(self, key: Key, folder: Path) -> Packed | None:
        """Copy an entry into a folder and verify it; one that is damaged is removed."""
        if self._rests():
            return None
        try:
            return self._fetched(key, folder)
        except FileNotFoundError:
            return None
        except Newer as error:
            self._warn(f"{self._name(key)} is not used: {error}")
        except Damaged as error:
            self._warn(f"{self._name(key)} is damaged and is dropped: {error}")
            self._drop(key)
        except Exception as error:
            self._rest("read", error)
        return None

    def send(self, packed: Packed, folder: Path) -> None:
        """Copy an entry there, by way of a folder: what lies beside it first, itself last."""
        if self._rests() or not self._is_writable:
            return
        key = packed.header.key
        try:
            for name, path in packed.blobs.items():
                beside = headers.blob_name(key.digest, packed.header.files[name])
                self._upload(path, self._path(key, beside))
            entry = folder / key.digest
            entry.write_bytes(packed.data)
            self._upload(entry, self._path(key, key.digest))
        except (PermissionError, NotImplementedError) as error:
            self._is_writable = False
            self._warn(f"{self.url} is only read: {summary(error)}")
        except Exception as error:
            self._rest("write", error)

    def _fetched(self, key: Key, folder: Path) -> Packed:
        entry = folder / key.digest
        self._download(self._path(key, key.digest), entry)
        data = entry.read_bytes()
        header, _ = packing.unpack(data, key)
        blobs = {}
        for name, file in header.blobs.items():
            beside = headers.blob_name(key.digest, file)
            blobs[name] = folder / beside
            try:
                self._download(self._path(key, beside), blobs[name], file.n_bytes)
            except FileNotFoundError as error:
                raise Damaged(f"{name} is missing") from error
            verify_blob_file(blobs[name], name, file)
        return Packed(header, data, blobs)

    def _download(self, path: str, file: Path, n_bytes: int = 0) -> None:
        def work(progress: Callback) -> None:
            self._open().files.get_file(path, str(file), callback=progress)

        self._patiently(work, n_bytes)

    def _upload(self, file: Path, path: str) -> None:
        def work(progress: Callback) -> None:
            store = self._open()
            if store.is_whole:
                store.files.put_file(str(file), path, callback=progress)
                return
            beside = f"{path}.{time.monotonic_ns()}.part"
            store.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            store.files.put_file(str(file), beside, callback=progress)
            store.files.mv(beside, path)

        self._patiently(work, file.stat().st_size)

    def _drop(self, key: Key) -> None:
        def work(_progress: Callback) -> None:
            self._open().files.rm_file(self._path(key, key.digest))

        # Whoever made it anew writes over it, where it cannot be removed.
        with contextlib.suppress(Exception):
            self._patiently(work)

    def _patiently(self, work: Callable[[Callback], None], n_bytes: int = 0) -> None:
        """Run work in a thread of its own, for as long as it makes progress."""
        progress, failure = _Progress(), list[BaseException]()

        def run() -> None:
            try:
                work(progress)
            except BaseException as error:
                failure.append(error)
            progress.done.set()

        patience = self._timeout_secs + n_bytes / _BYTES_PER_SEC
        threading.Thread(target=run, name="tuner-remote", daemon=True).start()
        while not progress.done.wait(0.05 if patience < 1.0 else 0.5):
            if time.monotonic() - progress.moved > patience:
                raise TimeoutError(f"no answer within {patience:.2g} s")
        if failure:
            raise failure[0]

    def _open(self) -> _Store:
        # Anew in each thread and each process: fsspec keeps what can be kept.
        files, root = fsspec.core.url_to_fs(self.url)
        return _Store(files, root.rstrip("/"))

    def _check(self) -> None:
        protocol = fsspec.core.split_protocol(self.url)[0] or "file"
        try:
            fsspec.get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:
            raise RequestError(f"cache_remote {self.url}: {summary(error)}") from error

    def _path(self, key: Key, name: str) -> str:
        return "/".join((self._open().root, LAYOUT, key.kind, key.digest[:2], name))

    def _name(self, key: Key) -> str:
        return f"{self.url}: the entry {key.digest[:12]} of {key.title or key.kind}"

    def _rests(self) -> bool:
        return time.monotonic() < self._rests_until

    def _rest(self, what: str, error: Exception) -> None:
        self._rests_until = time.monotonic() + self._rest_secs
        self._warn(
            f"cannot {what} {self.url}: {summary(error)}; "
            f"it is left alone for {self._rest_secs:.0f} s"
        )


class _Progress(Callback):  # type: ignore[misc]  # fsspec has no types
    """Notes when a transfer last moved."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = time.monotonic()
        self.done = threading.Event()

    def relative_update(self, inc: int = 1) -> None:
        """Note that so many bytes more went through."""
        self.moved = time.monotonic()
        super().relative_update(inc)

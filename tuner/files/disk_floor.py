"""Floor of free disk space, below which a service begins nothing that needs more of it."""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import exc, make_url

from tuner.formatting import size
from tuner.settings import Settings

#: Reason that a job which waits for disk space shows.
WAITING = "waiting for free disk space"
_DEFAULT_MIN_FREE = 2**30
# Of a disk whose twentieth is less than that.
_DEFAULT_SHARE = 0.05
_CHECK_INTERVAL_SECS = 1.0
# Time for which a disk that was full counts as such, whatever is free now.
_FULL_SECS = 5.0

_LOG = logging.getLogger(__name__)


# Folders of the data directory that may be volumes of their own, by their names for people.
_MODELS, _UPLOADS, _TEMPORARY = "models", "uploads", "temporary files"
_IN_DATA_DIR = {
    _UPLOADS: "uploads",
    "archives": "archives",
    _TEMPORARY: "tmp",
    _MODELS: "models",
    "scratch": "scratch",
}


@dataclass(frozen=True)
class Disk:
    """A disk that a service fills.

    Attributes:
        name: Name for people of the first folder on it.
        folder: The folder itself, or the closest one above it that exists.
        names: Names of all folders on it.
    """

    name: str
    folder: Path
    names: tuple[str, ...]


def folders_of(settings: Settings) -> dict[str, Path]:
    """Return the folders that a service fills, by their names for people."""
    folders = {"data directory": settings.data_dir, "build cache": settings.cache_dir}
    folders |= {name: settings.data_dir / part for name, part in _IN_DATA_DIR.items()}
    try:
        url = make_url(settings.database)
    except exc.ArgumentError:
        return folders
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        folders["database"] = Path(str(url.database)).absolute().parent
    return folders


def disks_of(folders: Mapping[str, Path]) -> list[Disk]:
    """Return the disks of folders, each once."""
    disks: dict[int, Disk] = {}
    for name, folder in folders.items():
        candidates: Iterable[Path] = (folder, *folder.parents)
        path = next(path for path in candidates if path.exists())
        first = disks.setdefault(path.stat().st_dev, Disk(name, path, ()))
        disks[path.stat().st_dev] = replace(first, names=(*first.names, name))
    return list(disks.values())


def shortage(
    settings: Settings, n_bytes: int = 0, *, n_upload_bytes: int = 0, n_import_bytes: int = 0
) -> str:
    """Return the reason why there is too little disk space; empty if there is enough.

    Args:
        settings: Folders and the floor.
        n_bytes: Bytes that are about to be stored as cleaned models.
        n_upload_bytes: Bytes of uploads that are arriving; each is a temporary file first.
        n_import_bytes: Bytes of logs that are arriving, which are temporary files only.
    """
    n_temporary_bytes = n_upload_bytes + n_import_bytes
    needs = {_MODELS: n_bytes, _UPLOADS: n_upload_bytes, _TEMPORARY: n_temporary_bytes}
    return _shortage(folders_of(settings), settings.retention.min_free_disk, needs)


def _shortage(folders: Mapping[str, Path], floor: int | None, needs: Mapping[str, int]) -> str:
    for disk in disks_of(folders):
        usage = shutil.disk_usage(disk.folder)
        limit = (
            min(_DEFAULT_MIN_FREE, int(_DEFAULT_SHARE * usage.total)) if floor is None else floor
        )
        if usage.free - sum(needs.get(name, 0) for name in disk.names) < limit:
            return (
                f"the disk of the {disk.name} has {size(usage.free)} left, of which {size(limit)} "
                "are kept free"
            )
    return ""


class DiskWatch:
    """Watch over the free disk space of a service; used by one thread.

    Args:
        settings: Folders and the floor.
        clock: Monotonic clock, seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._folders = folders_of(settings)
        self._floor = settings.retention.min_free_disk
        self._clock = clock
        self._due = -float("inf")
        self._is_short = False

    @property
    def is_short(self) -> bool:
        """True while there is too little; read from the disk once a second."""
        if self._clock() >= self._due:
            self._due = self._clock() + _CHECK_INTERVAL_SECS
            self._set(_shortage(self._folders, self._floor, {}))
        return self._is_short

    @property
    def has_room(self) -> bool:
        """True if the disks have as much space as the default floor keeps free."""
        return not _shortage(self._folders, None, {})

    def note_full(self, reason: str = "the disk is full") -> None:
        """Note that a write failed, whatever the floor is."""
        self._due = self._clock() + _FULL_SECS
        self._set(reason)

    def _set(self, reason: str) -> None:
        if reason and not self._is_short:
            _LOG.warning("%s: %s", WAITING, reason)
        elif self._is_short and not reason:
            _LOG.info("there is enough free disk space again")
        self._is_short = bool(reason)

"""Removal of the files that deleted jobs brought, unless another job has them too."""

import logging
import shutil
import time
from collections.abc import Collection, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from records.models import now
from records.service import holdings
from tuner.build_cache import gc, index
from tuner.build_cache.index import IndexedEntry
from tuner.build_cache.local import LocalTier
from tuner.build_cache.opening import open_local
from tuner.context import Context
from tuner.executors.local import remove_left_scratch
from tuner.jobs import model_cache
from tuner.jobs.submission import uploads_of
from tuner.service.archives import archives_of

# A younger file may belong to a request or a build that is not stored yet, or be in use.
_MIN_FILE_AGE_SECS = 15 * 60.0
_ASIDE = ".removing-"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Holdings:
    """Names of the files of some jobs."""

    uploads: Collection[str]
    archives: Collection[str]
    libraries: Collection[str]
    workloads: Collection[str]


def remove_files(context: Context) -> None:
    """Remove the files of jobs that were deleted long enough ago, and files of killed processes.

    It may be killed at any step: a later run removes what is left.
    """
    settings = context.settings
    data_dir, retention = settings.data_dir, settings.retention
    local, at = open_local(settings).local, time.time()
    # The names are read first: a file that is named afterwards is too young to be removed.
    kept, dropped, objects = _read_holdings(
        context, now() - timedelta(seconds=retention.keep_deleted)
    )
    limit = at - max(retention.keep_deleted, _MIN_FILE_AGE_SECS)
    _remove_unnamed(data_dir / "uploads", "*.onnx", kept.uploads, limit)
    _remove_unnamed(archives_of(data_dir), "*", kept.archives, limit)
    # Entries name what the database does not know: the cleaned file of a model.
    models = _remove_models(local, data_dir / "models", dropped.uploads, limit)
    _remove_old(
        (path for path in (data_dir / "models").glob("*") if path not in models),
        at - retention.keep_temporary,
    )
    _remove_old(_references(data_dir / "references", dropped.workloads), limit)
    for kind, digests in (("library", dropped.libraries), ("subgraph", objects)):
        for entry in _entries(local, kind, digests):
            gc.remove(local, entry)
    _remove_old(_temporary(data_dir), at - retention.keep_temporary)
    remove_left_scratch(data_dir)


def _read_holdings(context: Context, before: datetime) -> tuple[_Holdings, _Holdings, set[str]]:
    """Read what jobs keep, what is of deleted jobs alone, and the objects of their libraries."""
    data_dir = context.settings.data_dir

    def uploads(requests: list[dict[str, object]]) -> set[str]:
        return {path.name for request in requests for path in uploads_of(request, data_dir)}

    is_kept = holdings.kept(before)
    with context.readers() as session:
        kept, deleted = (
            _Holdings(
                uploads(holdings.requests(session, jobs)),
                holdings.archives(session, jobs),
                holdings.library_keys(session, jobs),
                holdings.workload_hashes(session, jobs),
            )
            for jobs in (is_kept, ~is_kept)
        )
        dropped = _Holdings(
            set(deleted.uploads) - set(kept.uploads),
            set(deleted.archives) - set(kept.archives),
            set(deleted.libraries) - set(kept.libraries),
            set(deleted.workloads) - set(kept.workloads),
        )
        keys, objects = set(dropped.libraries), set[str]()
        if keys:
            others = holdings.cache_entries(session, keys, of_others=True)
            objects = holdings.cache_entries(session, keys) - others
    return kept, dropped, objects


def _remove_unnamed(folder: Path, pattern: str, named: Container[str], limit: float) -> None:
    """Remove old files that no job names; one that a job stores again in this moment stays."""
    for path in folder.glob(f"{_ASIDE}*"):  # of a process that was killed
        name = path.name.removeprefix(_ASIDE)
        if name in named:
            path.rename(path.with_name(name))
        else:
            _unlink(path)
    for path in folder.glob(pattern):
        if path.name in named:
            continue
        with suppress(FileNotFoundError):
            if path.stat().st_mtime >= limit:
                continue
            aside = path.with_name(f"{_ASIDE}{path.name}")
            path.rename(aside)
            if aside.stat().st_mtime >= limit:
                aside.rename(path)
            else:
                _unlink(aside)


def _remove_models(
    local: LocalTier, folder: Path, dropped: Container[str], limit: float
) -> set[Path]:
    """Remove the cleaned files of dropped uploads; return files that other entries name."""
    named, unused = set[Path](), dict[IndexedEntry, Path]()
    for entry in index.entries(local, model_cache.KIND):
        header = index.header_of(entry)
        if header is None or header.parts.get("folder") != str(folder):
            continue
        path = Path(str(header.info["path"]))
        if f"{header.parts.get('content')}.onnx" in dropped and entry.used < limit:
            unused[entry] = path
        else:
            named.add(path)
    for entry, path in unused.items():
        # The file first: without its entry it would be found by its age alone.
        if path not in named:
            _unlink(path)
        gc.remove(local, entry)
    return named


def _references(folder: Path, dropped: Container[str]) -> Iterator[Path]:
    """Return the expected outputs of dropped workloads, and files of killed processes."""
    for path in folder.glob("*/*"):
        if path.name.partition("-")[0] in dropped or path.name.endswith(".partial"):
            yield path


def _entries(local: LocalTier, kind: str, digests: Container[str]) -> Iterator[IndexedEntry]:
    return (entry for entry in index.entries(local, kind) if entry.digest in digests)


def _temporary(data_dir: Path) -> Iterator[Path]:
    yield from (data_dir / "tmp").glob("*")
    yield from (data_dir / "uploads").glob(".upload-*")


def _remove_old(paths: Iterator[Path], limit: float) -> None:
    for path in list(paths):
        with suppress(FileNotFoundError):
            if path.lstat().st_mtime < limit:
                _unlink(path)


def _unlink(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        _LOG.info("removed %s/%s", path.parent.name, path.name)
    except OSError as error:
        _LOG.warning("cannot remove %s/%s: %s", path.parent.name, path.name, error.strerror)

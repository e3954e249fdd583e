"""Removal of files and rows that the service no longer needs, within the limits of its settings."""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Collection, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy.orm import Session

from records.models import now
from records.service import devices, kernel_codes, offered_packs, remote_devices, workers
from records.service.owners import holdings
from records.storage import purge
from records.tuning import calibrations
from tuner.build_cache import gc, index
from tuner.build_cache.cache import open_local
from tuner.build_cache.index import IndexedEntry
from tuner.build_cache.local import LocalTier
from tuner.context import Context
from tuner.devices.cpu_gate import CpuGate
from tuner.executors.local import remove_left_scratch
from tuner.jobs.models import model_cache
from tuner.jobs.submission import uploads_of
from tuner.packs import offers
from tuner.service.background import run_between_measurements
from tuner.service.builds.archives import archives_of
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS
from tuner.workers.confinement.log_rotation import rotate

_RETENTION_INTERVAL_SECS = 3600.0
_LOG_INTERVAL_SECS = 60.0
_MAX_SILENCE = timedelta(days=7)
_MAX_CALIBRATION_AGE = timedelta(days=30)
_MAX_CODE_AGE = timedelta(days=1)

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")
# Work of one transaction; returns the number of rows that it removed.
Step = Callable[[Session], int]

# A younger file may belong to a request or a build that is not stored yet, or be in use.
_MIN_FILE_AGE_SECS = 15 * 60.0
_ASIDE = ".removing-"


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
    _remove_unnamed(data_dir / offers.FOLDER, "*", _open_packs(context), limit)
    # Entries name what the database does not know: the cleaned file of a model.
    models = _remove_models(local, data_dir / "models", dropped.uploads, limit)
    _remove_old(
        (path for path in (data_dir / "models").glob("*") if path not in models),
        at - retention.keep_temporary,
    )
    _remove_old(_references(data_dir / "references", dropped.workloads), limit)
    for kind, digests in (("library", dropped.libraries), ("subgraph", objects)):
        for entry in (entry for entry in index.entries(local, kind) if entry.digest in digests):
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
        if path.name in named or path.is_dir():
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


def _open_packs(context: Context) -> set[str]:
    """Return the names of the files of packs that are offered."""
    with context.readers() as session:
        packs = [pack.pack for pack in offered_packs.list_packs(session) if not pack.ended]
    return {f"{pack}.{suffix}" for pack in packs for suffix in ("pyz", "json")}


def _references(folder: Path, dropped: Container[str]) -> Iterator[Path]:
    """Return the expected outputs of dropped workloads, and files of killed processes."""
    for path in folder.glob("*/*"):
        if path.name.partition("-")[0] in dropped or path.name.endswith(".partial"):
            yield path


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


class RetentionTask:
    """The part of a service worker that removes unused files and rows, at once and every hour.

    Every step is short and runs between measurements. Logs are rotated every minute.
    """

    def __init__(self, context: Context, gate: CpuGate) -> None:
        self._context = context
        self._gate = gate

    async def run(self) -> None:
        """Remove unused files and rows until cancelled; a failure is logged and tried again.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _RETENTION_INTERVAL_SECS
            for work in (remove_files, collect_cache, forget_silent):
                await self._try(work)
            for step in await self._try(list_purges) or ():
                while await self._try(partial(do, step)):
                    pass
            while loop.time() < due:
                await self._try(rotate_logs)
                await asyncio.sleep(min(_LOG_INTERVAL_SECS, max(due - loop.time(), 0.0)))

    async def _try(self, work: Callable[[Context], Result]) -> Result | None:
        """Do one piece of work between measurements; None if it fails."""
        try:
            return await run_between_measurements(
                self._gate, lambda: work(self._context), "retention"
            )
        except FATAL_DB_ERRORS:
            raise
        except Exception:
            _LOG.exception("unused files and rows cannot be removed")
        return None


def list_purges(context: Context) -> list[Step]:
    """Return the steps that remove old rows; each is repeated until it removes none."""
    retention, at = context.settings.retention, now()

    def limit(secs: float | None) -> datetime:
        # Nothing is older than the oldest time.
        oldest = datetime.min.replace(tzinfo=UTC)
        return oldest if secs is None else max(at - timedelta(seconds=secs), oldest)

    deleted, events = limit(retention.keep_deleted_rows), limit(retention.keep_events)
    features, entries = limit(retention.keep_features), limit(retention.keep_audit)
    with context.readers() as session:
        of_deleted = purge.deleted_jobs(session, deleted)
        with_events = purge.jobs_with_old_events(session, events)
    steps: list[Step] = [
        partial(purge.purge_job, job_id=job_id, before=deleted) for job_id in of_deleted
    ]
    steps += [partial(purge.remove_events, job_id=job_id, before=events) for job_id in with_events]
    steps.append(partial(purge.remove_features, before=features))
    steps.append(partial(purge.remove_audit, before=entries))
    return steps


def do(step: Step, context: Context) -> int:
    """Do one step in a transaction of its own."""
    with context.sessions.begin() as session:
        return step(session)


def collect_cache(context: Context) -> None:
    """Remove entries of the build cache beyond its limits, as ``tuner cache gc`` does."""
    settings = context.settings
    collected = gc.collect(
        open_local(settings).local,
        max_bytes=settings.retention.cache_max_size,
        unused_for_secs=settings.retention.cache_max_age,
    )
    if collected.n_entries or collected.n_strays:
        _LOG.info(
            "removed %d entries of the build cache and %d files of killed processes",
            collected.n_entries,
            collected.n_strays,
        )


def forget_silent(context: Context) -> None:
    """Remove rows of workers and devices that are gone, and old calibrations and code."""
    with context.sessions.begin() as session:
        workers.forget(session, _MAX_SILENCE)
        devices.forget(session, _MAX_SILENCE)
        remote_devices.forget(session, _MAX_SILENCE)
        calibrations.forget(session, _MAX_CALIBRATION_AGE)
        kernel_codes.forget(session, _MAX_CODE_AGE)


def rotate_logs(context: Context) -> None:
    """Rotate the logs of worker processes that are too long."""
    for log in (context.settings.data_dir / "logs").glob("*.log"):
        rotate(log, context.settings.retention.log_max_size)

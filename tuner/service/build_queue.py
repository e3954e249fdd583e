"""Libraries that were asked for over the network: compiled and packed between two rounds."""

import logging

from records import builds, jobs
from records.errors import NoSuchRow
from records.models import Job
from records.service_models import Build
from tuner.build_cache.opening import open_cache
from tuner.compile.build_library import BuildOptions, keep_library
from tuner.context import Context
from tuner.errors import RequestError, TunerError, WorkError
from tuner.jobs.submission import request_of
from tuner.service import logs
from tuner.service.archives import Archive, pack
from tuner.service.job_loader import NO_MESSAGE, UNSTORABLE, Told
from tuner.service.loading import Limits, loading, user_facing_errors
from tuner.tuning.storage_retry import FATAL_DB_ERRORS

_LOG = logging.getLogger(__name__)


class BuildQueue:
    """Serves builds, one at a time, in the order they were asked for."""

    def __init__(self, context: Context, limits: Limits, tell: Told) -> None:
        self._context = context
        self._limits = limits
        self._tell = tell

    def serve_next(self) -> bool:
        """Serve the next build that waits; False if none does.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        with self._context.readers() as session:
            build = builds.next_build(session)
        if build is None:
            return False
        with logs.bound(job=build.job_id, build=build.id):
            _LOG.info("building the library")
            self._tell(build.job_id, "building the library")
            self._serve(build)
        return True

    def _serve(self, build: Build) -> None:
        self._set(build.id, "running", message=None)
        try:
            key, archive = self._build(build)
        except FATAL_DB_ERRORS:
            raise
        except TunerError as error:
            _LOG.warning("the build failed: %s", error)
            # Where the data directory is on this machine is nobody's business.
            said = str(error).replace(f"{self._context.settings.data_dir}/", "")
            self._fail(build.id, said)
        except Exception as error:
            _LOG.exception("the build failed")
            self._set(build.id, "failed", message=f"internal error: {type(error).__name__}")
        except BaseException:
            self._set(build.id, "queued")
            raise
        else:
            self._set(
                build.id,
                "done",
                library_key=key,
                archive=archive.name,
                sha256=archive.sha256,
                n_bytes=archive.n_bytes,
            )

    def _build(self, build: Build) -> tuple[str, Archive]:
        """Build and pack a library; return its key and its archive."""
        job = self._job(build.job_id)
        request = request_of(job.request or {}, self._context.settings.data_dir)
        if not 0 <= build.model_index < len(request.models):
            raise RequestError(
                f"job {job.id} has {len(request.models)} models, no number {build.model_index}"
            )
        model = request.models[build.model_index]
        with (
            loading(self._context, model, self._limits, must_run=False) as (worker, prepared),
            user_facing_errors(model, self._limits),
        ):
            options = BuildOptions(strict=build.strict)
            kept = keep_library(self._context, [prepared], worker, options)
        data_dir = self._context.settings.data_dir
        try:
            with kept.entry, open_cache(self._context.settings).new_folder() as folder:
                kept.write_into(folder)
                return kept.entry.digest, pack(folder, kept.entry.digest, data_dir)
        except OSError as error:
            raise WorkError(f"cannot write the library: {error.strerror or error}") from error

    def _job(self, job_id: int) -> Job:
        try:
            with self._context.readers() as session:
                job = jobs.get_job(session, job_id)
        except NoSuchRow as error:
            raise RequestError(
                f"job {job_id} was deleted; ask for it again and then for its library"
            ) from error
        if job.request is None:
            raise RequestError(
                f"job {job_id} is one of the command line, and its model is there: "
                "build it with tuner build"
            )
        return job

    def _fail(self, build_id: int, message: str) -> None:
        try:
            self._set(build_id, "failed", message=message)
        except UNSTORABLE:
            _LOG.exception("the message cannot be stored")
            self._set(build_id, "failed", message=NO_MESSAGE)

    def _set(self, build_id: int, state: str, **values: object) -> None:
        with self._context.sessions.begin() as session:
            builds.set_build(session, build_id, state, **values)

"""The part of a service worker that compiles requested libraries, and prints code of records."""

import asyncio
import logging
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from records import jobs
from records.errors import NoSuchRow
from records.models import Job, Target
from records.service import builds, kernel_codes
from records.service.service_models import Build, KernelCode
from records.tuning import attempts
from scheduler.fairness import Turns
from tuner.compile.build_library import BuildOptions, CachedLibrary, build_into_cache
from tuner.compile.kernel_code import print_kernel
from tuner.compile.padding import BucketedModel, check_padding
from tuner.context import Context
from tuner.engines.base import TargetInfo
from tuner.errors import RequestError, TunerError, WorkError
from tuner.jobs.models.model_loading import LoadLimits
from tuner.jobs.submission import request_of
from tuner.library.signatures import policy_of
from tuner.service import logs
from tuner.service.background import run_beside_measurements, run_between_measurements
from tuner.service.builds.archives import Archive, pack
from tuner.service.builds.build_profiles import profile_build
from tuner.service.cpu_hold import CpuHold
from tuner.service.loading.job_loader import NO_MESSAGE, UNSTORABLE, ActivityCallback
from tuner.service.loading.limited_loading import (
    ProcessLimits,
    again_if_killed,
    loaded_model,
    programs,
    user_facing_errors,
)
from tuner.tuning.context import TuningContext
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS

_POLL_INTERVAL_SECS = 0.5
_DESCRIBE_TIMEOUT_SECS = 300.0

_LOG = logging.getLogger(__name__)


class BuildQueue:
    """Serves builds one at a time, owner by owner in turn, and the builds of an owner in order.

    A build that fails for any reason but a lost database affects no other. Measurements do not
    wait for a build: its compilers pause while a CPU is measured. Nor does a build wait for one
    that several processes died over, which waits for its turn: see :mod:`records.tuning.attempts`.
    Code of records is printed while no build waits.
    Without free disk space all wait, and while another process measures on this machine.

    Args:
        context: Settings and database.
        limits: Limits on the loading and compiling of a model.
        tuning_context: Context of the coordinator.
        on_activity: Receives the job whose library is built.
        cpu: Hold on this machine's CPU.

    Attributes:
        is_building: True while a library is being built, or code printed.
    """

    def __init__(
        self,
        context: Context,
        limits: ProcessLimits,
        tuning_context: TuningContext,
        on_activity: ActivityCallback,
        cpu: CpuHold,
    ) -> None:
        self._cpu = cpu
        self._context = context
        self._limits = limits
        self._gate = tuning_context.cpu_gate
        self._tuning_context = tuning_context
        self._on_activity = on_activity
        self.is_building = False
        self._turns = Turns()

    async def run(self) -> None:
        """Serve builds until cancelled; an unfinished one then returns to the queue.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        while True:
            if not (await self.serve_next() or await self.print_next()):
                await asyncio.sleep(_POLL_INTERVAL_SECS)

    async def serve_next(self) -> bool:
        """Serve the next waiting build; returns whether there was one.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        if self._tuning_context.lacks_disk:
            return False
        turn = self._tuning_context.suspect_turn
        may_be_suspect = turn.try_take()
        try:
            build = await run_between_measurements(
                self._gate, lambda: self._next_build(with_suspects=may_be_suspect), "next-build"
            )
            if may_be_suspect and (build is None or not _is_suspect(build)):
                turn.give_back()
                may_be_suspect = False
            if build is None:
                return False
            self.is_building = True
            if not self._cpu.try_acquire():
                return False
            with logs.bound(job=build.job_id, build=build.id):
                _LOG.info("building the library")
                self._on_activity(build.job_id, "building the library")
                try:
                    await self._run(build)
                except FATAL_DB_ERRORS:
                    self._tuning_context.unsettled.add_build(build.id)
                    raise
        finally:
            self.is_building = False
            if may_be_suspect:
                turn.give_back()
        return True

    async def print_next(self) -> bool:
        """Print the code of a record that waits for it; returns whether there was one.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        if self._tuning_context.lacks_disk or not await run_between_measurements(
            self._gate, self._is_code_waiting, "is-code-waiting"
        ):
            return False
        self.is_building = True
        try:
            if not self._cpu.try_acquire():
                return False
            row = await run_between_measurements(self._gate, self._begin_code, "begin-code")
            if row is not None:
                await run_beside_measurements(
                    self._gate, lambda: self._print(row), "code", lambda: True
                )
        finally:
            self.is_building = False
        return row is not None

    def _is_code_waiting(self) -> bool:
        with self._context.readers() as session:
            return kernel_codes.is_any_waiting(session)

    def _begin_code(self) -> KernelCode | None:
        with self._context.sessions.begin() as session:
            return kernel_codes.begin_next(session)

    def _print(self, row: KernelCode) -> None:
        part: Any = row.part
        text, message = "", None
        try:
            texts = print_kernel(
                self._context,
                row.record_id,
                [part],
                max_bytes=self._limits.max_bytes,
                share=self._context.settings.load_share,
            )
            text = texts[part]
        except FATAL_DB_ERRORS:
            raise
        except TunerError as error:
            message = str(error).replace(f"{self._context.settings.data_dir}/", "")
        except Exception as error:
            _LOG.exception("the code of a record cannot be printed")
            message = f"internal error: {type(error).__name__}"
        with self._context.sessions.begin() as session:
            kernel_codes.finish(session, row, text=text, message=message)

    def _next_build(self, *, with_suspects: bool) -> Build | None:
        """Return the next waiting build; fail builds that too many processes died over.

        Args:
            with_suspects: False to leave out builds that several processes died over.
        """
        with self._context.readers() as session:
            waiting = self._turns.ordered(builds.waiting(session), lambda item: item.owner)
        for build, owner in waiting:
            if _is_suspect(build) and not with_suspects:
                continue
            if build.attempts < attempts.MAX_DEATHS:
                self._turns.serve(owner)
                return build
            _LOG.error("quarantined", extra={"job": build.job_id, "build": build.id})
            with self._context.sessions.begin() as session:
                attempts.quarantine_build(session, build.id)
        return None

    async def _run(self, build: Build) -> None:
        self._set(build.id, "running", message=None, attempts=build.attempts + 1)
        name = f"build-{build.id}"
        try:
            library = await run_beside_measurements(
                self._gate,
                lambda: again_if_killed(
                    lambda: self._compile(build), lambda: self._begin_again(build.id)
                ),
                name,
                lambda: self._is_wanted(build.id),
            )
            with library.entry:
                archive = await run_between_measurements(
                    self._gate, lambda: self._pack(library), name
                )
                problem = None
                if build.profile:
                    problem = await profile_build(
                        self._context,
                        self._tuning_context,
                        self._job(build.job_id),
                        build,
                        library,
                    )
        except FATAL_DB_ERRORS:
            raise
        except TunerError as error:
            _LOG.warning("the build failed: %s", error)
            # The path of the data directory is not shown to clients.
            message = str(error).replace(f"{self._context.settings.data_dir}/", "")
            try:
                self._set(build.id, "failed", message=message)
            except UNSTORABLE:
                _LOG.exception("the message cannot be stored")
                self._set(build.id, "failed", message=NO_MESSAGE)
        except Exception as error:
            _LOG.exception("the build failed")
            self._set(build.id, "failed", message=f"internal error: {type(error).__name__}")
        except BaseException:
            try:
                self._set(build.id, "queued", attempts=build.attempts)
            except FATAL_DB_ERRORS:  # the next coordinator serves running builds, too
                self._tuning_context.unsettled.add_build(build.id)
            raise
        else:
            facts: dict[str, Any] = {"sha256": archive.sha256, "n_bytes": archive.n_bytes}
            with self._context.sessions.begin() as session:
                # The archive may have replaced a damaged one that other builds name.
                builds.update_archive(session, archive.name, **facts)
                builds.set_build(
                    session, build.id, "done",
                    message=problem, attempts=0, library_key=library.entry.digest,
                    archive=archive.name, **facts,
                )  # fmt: skip

    def _begin_again(self, build_id: int) -> bool:
        with self._context.sessions.begin() as session:
            return attempts.begin_again(session, build_id)

    def _is_wanted(self, build_id: int) -> bool:
        with self._context.readers() as session:
            return builds.is_wanted(session, build_id)

    def _compile(self, build: Build) -> CachedLibrary:
        """Compile a library into the build cache."""
        job = self._job(build.job_id)
        request = request_of(job.request or {}, self._context.settings.data_dir)
        if not 0 <= build.model_index < len(request.models):
            raise RequestError(
                f"job {job.id} has {len(request.models)} models, no number {build.model_index}"
            )
        model = request.models[build.model_index]
        dimensions, requests = programs(self._context, model, self._limits)
        members = []
        with ExitStack() as stack:
            for number, each in enumerate(requests, start=1):
                loaded = loaded_model(
                    self._context,
                    each,
                    self._limits,
                    must_run=False,
                    describe=lambda spec: self._describe(job, spec),
                )
                if number < len(requests):
                    with loaded as (_, prepared):
                        members.append(prepared)
                else:
                    # The process of the last program links them all.
                    worker, prepared = stack.enter_context(loaded)
                    members.append(prepared)
            stack.enter_context(user_facing_errors(model, self._limits))
            buckets = None
            if dimensions:
                bucketed = BucketedModel(model, dimensions, requests, prepared)
                buckets = check_padding(
                    self._context.settings,
                    bucketed,
                    max_bytes=self._limits.max_bytes,
                    limits=LoadLimits(self._limits.secs, alone=True),
                )
            options = BuildOptions(build.strict, buckets=buckets)
            return build_into_cache(self._context, members, worker, options)

    def _describe(self, job: Job, spec: str) -> TargetInfo | None:
        """Describe the target of a job on a named device, which may be offline; None for others."""
        if "@" not in spec or job.target_id is None:
            return None
        with self._context.readers() as session:
            target = session.get_one(Target, job.target_id)
        info: TargetInfo = self._tuning_context.executor.submit(
            "describe_target", target.spec, timeout_secs=_DESCRIBE_TIMEOUT_SECS
        ).result()
        return replace(info, device=target.device)

    def _pack(self, library: CachedLibrary) -> Archive:
        """Pack a compiled library into an archive."""
        settings = self._context.settings
        try:
            # Not in the cache, whose temporary files processes of others may write.
            temporary = settings.data_dir / "tmp"
            temporary.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=temporary) as name:
                folder = Path(name)
                library.write_into(folder)
                signatures = policy_of(settings)
                return pack(folder, library.entry.digest, settings.data_dir, signatures)
        except OSError as error:
            raise WorkError(f"cannot write the library: {error.strerror or error}") from error

    def _job(self, job_id: int) -> Job:
        try:
            with self._context.readers() as session:
                job = jobs.get_job(session, job_id)
        except NoSuchRow as error:
            raise RequestError(
                f"job {job_id} was deleted; submit it again and then request its library"
            ) from error
        if job.request is None:
            raise RequestError(
                f"job {job_id} was started on the command line, where its model is: "
                "build it with tuner build"
            )
        return job

    def _set(self, build_id: int, state: str, *, attempts: int = 0, **values: object) -> None:
        with self._context.sessions.begin() as session:
            builds.set_build(session, build_id, state, attempts=attempts, **values)


def _is_suspect(build: Build) -> bool:
    return attempts.SUSPECT_DEATHS <= build.attempts < attempts.MAX_DEATHS

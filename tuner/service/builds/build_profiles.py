"""Profiles of libraries that clients requested together with a build."""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from records import jobs
from records.models import Job
from records.service.service_models import Build
from tuner.compile.build_library import CachedLibrary
from tuner.context import Context
from tuner.devices.device import Device
from tuner.devices.runners.local import LocalRunner
from tuner.devices.target_matching import kind_named
from tuner.engines.base import TargetInfo
from tuner.errors import RequestError, TunerError
from tuner.files.process_folder import shared_folder
from tuner.jobs.submission import request_of
from tuner.profiling.library_profile import ProfileRequest, time_library
from tuner.queries.profiles import store_profile
from tuner.tuning.context import TuningContext
from tuner.tuning.event_loop import run_in_thread
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS
from tuner.workers.processes.pause_group import PauseGroup

# Other measurements wait for a profile.
_MAX_SECS = 300.0

_LOG = logging.getLogger(__name__)


async def profile_build(
    context: Context, tuning: TuningContext, job: Job, build: Build, library: CachedLibrary
) -> str | None:
    """Profile a library on its device, which measures nothing else then, and store the profile.

    The job is charged for the seconds that it has the device.

    Args:
        context: Settings and database.
        tuning: Context of the coordinator.
        library: The library, held in the build cache.

    Returns:
        The reason if it cannot be profiled.

    Raises:
        LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
    """
    name, secs, problem = f"profile-{build.id}", 0.0, None
    try:
        device, runner = await _device_of(tuning, library)
        async with device.exclusive(tuning.cpu_gate):
            started = tuning.now()
            try:
                work = partial(_profile, context, job, build.model_index, library, runner.environ)
                await _run(work, name)
            finally:
                # Rounds that waited are charged from here on.
                device.free_since = tuning.now()
                secs = device.free_since - started
    except FATAL_DB_ERRORS:
        raise
    except TimeoutError:
        problem = f"no profile: it took longer than {_MAX_SECS:g} s"
    except TunerError as error:
        # The path of the data directory is not shown to clients.
        problem = f"no profile: {error}".replace(f"{context.settings.data_dir}/", "")
    except Exception as error:
        _LOG.exception("the library cannot be profiled")
        problem = f"no profile: internal error: {type(error).__name__}"
    if secs:
        with context.sessions.begin() as session:
            jobs.add_spent_secs(session, job.id, secs)
    return problem


async def _run(work: Callable[[], None], name: str) -> None:
    """Run work in a thread; its processes are killed if it fails, takes too long or is cancelled.

    Raises:
        TimeoutError: If it takes too long.
    """
    pools = PauseGroup()

    def collect_and_run() -> None:
        with pools.collecting():
            work()

    try:
        async with asyncio.timeout(_MAX_SECS):
            await run_in_thread(collect_and_run, name)
    except BaseException:
        await run_in_thread(pools.close, f"{name}-close")
        raise


async def _device_of(tuning: TuningContext, library: CachedLibrary) -> tuple[Device, LocalRunner]:
    """Return the device of this machine that a library was built for.

    Raises:
        RequestError: If there is none.
    """
    described = library.manifest
    target = TargetInfo(described.target, kind_named(described.target), described.device)
    tuning.refresh()
    for device in list(tuning.devices.values()):
        if not isinstance(device.runner, LocalRunner):
            continue
        if device.supports(target) is None:
            await device.query(target)
        if device.supports(target):
            return device, device.runner
    raise RequestError(
        f"{described.device.get('name', 'its device')} is not a device of the worker's machine; "
        "run tuner profile with --job there, which uploads the profile"
    )


def _profile(
    context: Context,
    job: Job,
    model_index: int,
    library: CachedLibrary,
    environ: Mapping[str, str],
) -> None:
    model = request_of(job.request or {}, context.settings.data_dir).models[model_index]
    request = ProfileRequest(model=model.reference, random_weights=model.random_weights)
    with tempfile.TemporaryDirectory(dir=shared_folder()) as folder:
        library.write_into(Path(folder))
        profile = time_library(context, Path(folder), request, environ)
    with context.sessions.begin() as session:
        store_profile(session, jobs.get_job(session, job.id), profile)

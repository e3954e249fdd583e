"""The worker process of the service: a standby, and the active worker once no other process is.

It holds no state that the database does not: whatever ends it, this or another process resumes.

Settings that cannot be honoured stop the start; later, each would be an error that a worker meets,
and tries again for ever.
"""

import importlib.util
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from records import database
from records.errors import RecordsError, SchemaTooNew, SchemaTooOld
from records.service import leases
from records.service.leases import HeldLease
from tuner import interrupts
from tuner.context import Context
from tuner.devices.locks import check_runtime_dir
from tuner.devices.runners.addresses import parse_addresses
from tuner.engines import environments
from tuner.errors import DeviceBusy, RequestError, TunerError, WorkError, summary
from tuner.executors.base import Executor
from tuner.executors.factory import open_executor
from tuner.library.signatures import policy_of
from tuner.service.active_worker import ActiveWorker
from tuner.service.arenas import limit_arenas
from tuner.service.coordinator_lease import CoordinatorLease
from tuner.service.cpu_hold import CpuHold
from tuner.service.loading.limited_loading import ProcessLimits
from tuner.settings import Settings
from tuner.tuning.job.suspects import UnsettledAttempts
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS
from tuner.workers.base import CallTimeout
from tuner.workers.confinement import sandbox

_LEASE_POLL_INTERVAL_SECS = 1.0
_MAX_BACK_OFF_SECS = 15.0
_ENGINE_START_TIMEOUT_SECS = 120.0
# Of workers, a cluster included, before the event loop runs; and of their end after it.
_MAX_START_SECS = 900.0

_LOG = logging.getLogger(__name__)


def check_worker(settings: Settings) -> Settings:
    """Check that this machine can run a worker with some settings.

    Returns:
        The settings, in which ``worker_sandbox`` is not ``auto``.

    Raises:
        RequestError: If it cannot; the message names the setting and the reason.
    """
    if settings.worker_sandbox == "auto":
        settings = replace(settings, worker_sandbox="required")
    problem = sandbox.shortcoming()
    if settings.worker_sandbox == "required" and problem:
        raise RequestError(
            f"the kernel cannot confine the processes that parse models and run kernels: {problem};"
            " set worker_sandbox to 'partial' to serve with what it can, or to 'off'"
        )
    state = sandbox.state(settings.worker_sandbox)
    if state != sandbox.CONFINED:
        _LOG.warning("worker processes are not confined as they should be: %s", state)
    settings.check_engine()
    needs_tvm = settings.engine == environments.ENGINES[environments.RELAX]
    if needs_tvm and importlib.util.find_spec("tvm") is None:
        raise RequestError("the engine relax needs TVM, which is not installed; see tuner doctor")
    policy_of(settings)
    if settings.rpc is not None:
        parse_addresses(settings.rpc)
    check_runtime_dir()
    return settings


def run_worker(context: Context, limits: ProcessLimits) -> None:
    """Stand by, coordinate, and stand by again after an error, until interrupted.

    Active jobs then return to the queue, and the next coordinator resumes them.

    Raises:
        Interrupted: On Ctrl-C or SIGTERM.
        SchemaTooNew: If a newer version has upgraded the database; nothing is written any more.
        SchemaTooOld: If an older database has taken its place.
    """
    limit_arenas()
    n_failures = 0
    unsettled, cpu = UnsettledAttempts(), CpuHold(context.settings)
    database.end_idle_transactions(context.engine)
    with CoordinatorLease(context.engine, context.settings.max_stall_secs) as lease:
        while True:
            began = time.monotonic()
            try:
                with coordinating(context, lease, cpu, unsettled) as held:
                    began = time.monotonic()
                    # Run the jobs of the service while the lease is held.
                    _LOG.info("coordinating", extra={"epoch": held.epoch})
                    lease.set_role("active", "starting workers")
                    lease.report_progress(_MAX_START_SECS)
                    sessions = leases.fenced(context.engine, held)
                    with open_executor(context.settings, lease.meter, sessions) as executor:
                        executor.warm_up()
                        confinement = {"sandbox": sandbox.state(context.settings.worker_sandbox)}
                        lease.set_role(
                            "active", "waiting for jobs", _cpu_fingerprint(executor) | confinement
                        )
                        try:
                            ActiveWorker(
                                context, executor, (lease, held, cpu), limits, unsettled
                            ).run()
                        finally:
                            lease.report_progress(_MAX_START_SECS)
            except (SchemaTooNew, SchemaTooOld):
                raise
            except Exception as error:
                # The error may have replaced an interrupt.
                interrupts.raise_if_interrupted()
                n_failures = 0 if time.monotonic() - began > _MAX_BACK_OFF_SECS else n_failures
                n_failures += 1
                is_expected = isinstance(error, (*FATAL_DB_ERRORS, RecordsError, TunerError))
                _LOG.warning(
                    "standing by again: %s",
                    summary(error),
                    exc_info=None if is_expected else error,
                )
                _sleep(min(2.0**n_failures * random.uniform(0.25, 0.5), _MAX_BACK_OFF_SECS))


@contextmanager
def coordinating(
    context: Context,
    lease: CoordinatorLease,
    cpu: CpuHold,
    unsettled: UnsettledAttempts | None = None,
) -> Iterator[HeldLease]:
    """Wait for the lease and for this machine's CPU, and hold both inside.

    Args:
        context: Settings and database.
        lease: Lease of this process.
        cpu: Hold on the CPU, which may be let go and taken again inside.
        unsettled: Attempts to take back as soon as there is a database.
    """
    lease.set_role("standby", "standing by")
    _LOG.info("standing by")
    reported = ""
    while True:
        lease.report_progress()
        # Before anything is written: an upgrade ends the lease, so that the holder comes here.
        database.check_schema(context.engine)
        if unsettled is not None:
            unsettled.settle(context.sessions)
        held = lease.acquire()
        if held is not None:
            try:
                cpu.acquire()
                yield held
                return
            except DeviceBusy as error:
                if str(error) != reported:
                    reported = str(error)
                    _LOG.info("waiting: %s", reported)
                    lease.set_role("standby", reported)
            finally:
                cpu.release()
                lease.release()
        _sleep(_LEASE_POLL_INTERVAL_SECS)


def _cpu_fingerprint(executor: Executor) -> dict[str, object]:
    """Return the fingerprint of a builder's CPU.

    Raises:
        WorkError: If the engine does not start.
    """
    try:
        target = executor.submit(
            "describe_target", "llvm", timeout_secs=_ENGINE_START_TIMEOUT_SECS
        ).result()
    except (WorkError, CallTimeout) as error:
        raise WorkError(f"the engine does not start: {error}") from error
    return dict(target.device)


def _sleep(secs: float) -> None:
    """Sleep; an interrupt ends it."""
    with interrupts.waiting():
        time.sleep(secs)

"""The process that measures: stands by, and coordinates once nobody else does.

It holds nothing that the database does not: whatever ends it, it or another one goes on.
"""

import logging
import random
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from records import database, leases
from records.errors import RecordsError
from records.leases import HeldLease
from tuner import interrupts
from tuner.context import Context
from tuner.devices.calibration.calibrator import CalibrationSettings
from tuner.devices.locks import device_lock
from tuner.errors import DeviceBusy, TunerError, WorkError, summary
from tuner.executors.base import Executor
from tuner.executors.factory import describer_of, has_remote_devices, open_executor
from tuner.service.build_queue import BuildQueue
from tuner.service.job_loader import JobLoader
from tuner.service.leader_election import CoordinatorLease
from tuner.service.loading import Limits
from tuner.service.retention import RetentionTask
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.job_queue import SessionFactory
from tuner.tuning.storage_retry import FATAL_DB_ERRORS, wait_for_lock
from tuner.workers.base import CallTimeout

_POLL_SECS = 1.0
_IDLE_TRANSACTION_SECS = 5.0
_MOST_BACK_OFF_SECS = 15.0
_START_SECS = 120.0

_LOG = logging.getLogger(__name__)


def run_worker(context: Context, limits: Limits) -> None:
    """Stand by, coordinate, and stand by again, until it is interrupted.

    Jobs that were under way are queued then, and go on with whoever is next.

    Raises:
        Interrupted: By Ctrl-C or SIGTERM.
    """
    n_failures = 0
    database.end_idle_transactions(context.engine, _IDLE_TRANSACTION_SECS)
    with CoordinatorLease(context.engine) as presence:
        while True:
            began = time.monotonic()
            try:
                with coordinating(context, presence) as held:
                    began = time.monotonic()
                    _serve(context, presence, held, limits)
            except Exception as error:
                # It may have taken the place of an interrupt.
                interrupts.raise_if_interrupted()
                n_failures = 0 if time.monotonic() - began > _MOST_BACK_OFF_SECS else n_failures
                n_failures += 1
                known = isinstance(error, (*FATAL_DB_ERRORS, RecordsError, TunerError))
                _LOG.warning(
                    "standing by again: %s", summary(error), exc_info=None if known else error
                )
                _rest(min(2.0**n_failures * random.uniform(0.25, 0.5), _MOST_BACK_OFF_SECS))


@contextmanager
def coordinating(context: Context, presence: CoordinatorLease) -> Iterator[HeldLease]:
    """Wait for the lease and for this machine's device, and hold both inside."""
    presence.become("standby", "standing by")
    _LOG.info("standing by")
    blocked = ""
    while True:
        held = presence.acquire()
        if held is not None:
            try:
                with device_lock(context.settings.data_dir):
                    yield held
                    return
            except DeviceBusy as error:
                if str(error) != blocked:
                    blocked = str(error)
                    _LOG.info("waiting: %s", blocked)
                    presence.become("standby", blocked)
            finally:
                presence.release()
        _rest(_POLL_SECS)


def _serve(context: Context, presence: CoordinatorLease, held: HeldLease, limits: Limits) -> None:
    """Run the jobs of the service while the lease is ours."""
    _LOG.info("coordinating", extra={"epoch": held.epoch})
    presence.become("active", "starting workers")
    fenced = replace(context, sessions=leases.fenced(context.engine, held, wait_for_lock))
    with open_executor(context.settings, presence.meter) as executor:
        executor.warm_up()
        presence.become("active", "waiting for jobs", _device_of(executor))
        describe = describer_of(executor) if has_remote_devices(context.settings) else None
        intake = JobLoader(fenced, limits, presence.tell, describe)
        desk = BuildQueue(fenced, limits, presence.tell)
        upkeep = RetentionTask(fenced)

        def source(running: Collection[int]) -> Sequence[SessionFactory]:
            presence.check()
            upkeep.tend()
            desk.serve_next()
            taken = intake.take(running)
            if not (running or taken):
                presence.tell(None, "waiting for jobs")
            return taken

        settings = context.settings
        tuning_context = TuningContext(
            fenced.sessions, executor, settings.data_dir, worker=presence.name
        )
        calibration = CalibrationSettings(settings.device_tolerance)
        coordinator = Coordinator(
            tuning_context,
            source,
            state_on_interrupt="queued",
            keep_running=True,
            calibration=calibration,
        )
        try:
            coordinator.run()
        finally:
            with suppress(*FATAL_DB_ERRORS):  # whoever coordinates next takes what runs, too
                intake.give_back()


def _device_of(executor: Executor) -> dict[str, object]:
    """Return the fingerprint of a builder's CPU.

    Raises:
        WorkError: If the engine does not start.
    """
    try:
        found = executor.submit("describe_target", "llvm", timeout_secs=_START_SECS).result()
    except (WorkError, CallTimeout) as error:
        raise WorkError(f"the engine does not start: {error}") from error
    return dict(found.device)


def _rest(secs: float) -> None:
    """Sleep; an interrupt ends it."""
    with interrupts.waiting():
        time.sleep(secs)

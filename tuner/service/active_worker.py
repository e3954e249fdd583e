"""The service while this process is the active worker: named tasks of one event loop."""

import asyncio
from dataclasses import replace

from records.service import leases
from records.service.leases import HeldLease
from tuner.context import Context
from tuner.devices.calibration.calibrator import CalibrationSettings
from tuner.executors.base import Executor
from tuner.executors.factory import describer_of, has_remote_devices
from tuner.files import disk_floor
from tuner.files.disk_floor import DiskWatch
from tuner.service.builds.build_queue import BuildQueue
from tuner.service.coordinator_lease import CoordinatorLease
from tuner.service.cpu_hold import CpuHold
from tuner.service.loading.job_loader import JobLoader
from tuner.service.loading.job_poller import JobPoller
from tuner.service.loading.limited_loading import ProcessLimits
from tuner.service.retention import RetentionTask
from tuner.tuning import event_loop
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.job.suspects import UnsettledAttempts
from tuner.tuning.writing.storage_retry import wait_for_lock

_LEASE_CHECK_INTERVAL_SECS = 0.5


class ActiveWorker:
    """Runs the jobs and builds of the service as long as this process holds the lease.

    Its parts are tasks of one event loop:

    * ``coordinator`` assigns rounds to devices and writes their trials.
    * ``lease-keeper`` reports the progress of the loop, on which the lease depends, and ends the
      worker when another process holds the lease.
    * ``job-poller`` claims submitted jobs, loads their models and has them admitted.
    * ``build-queue`` compiles and packs requested libraries.
    * ``retention`` removes files and rows that nothing needs any more.

    What blocks runs in threads, so that a slow load or build holds up neither the admission nor
    the measuring of other jobs. On a CPU that is a measured device itself, such work pauses
    during measurements. An error that concerns one job, build or file is handled by its part; any
    other, such as a lost database or lease, ends the part and with it the worker.

    Args:
        context: Settings and database.
        executor: Builders and runners.
        holds: Lease of this process, the term for which it was acquired (writes in any other are
            refused), and the hold on the CPU, which is let go while it has neither jobs nor builds.
        limits: Limits on the loading and compiling of models.
        unsettled: Attempts that earlier terms of this process could not take back.
    """

    def __init__(
        self,
        context: Context,
        executor: Executor,
        holds: tuple[CoordinatorLease, HeldLease, CpuHold],
        limits: ProcessLimits,
        unsettled: UnsettledAttempts | None = None,
    ) -> None:
        settings = context.settings
        lease, held, self._cpu = holds
        fenced = replace(context, sessions=leases.fenced(context.engine, held, self._wait_for_lock))
        describe = describer_of(executor, only_named=not has_remote_devices(settings))
        tuning_context = TuningContext(
            fenced.sessions,
            executor,
            settings.data_dir,
            worker=lease.name,
            unsettled=unsettled,
            disk=DiskWatch(settings),
        )
        self._tuning_context = tuning_context
        self._lease = lease
        self._coordinator = Coordinator(
            tuning_context,
            state_on_interrupt="queued",
            keep_running=True,
            calibration=CalibrationSettings(settings.device_tolerance),
        )
        loader = JobLoader(
            fenced, limits, lease.report_activity, tuning_context.unsettled, describe
        )
        self._build_queue = BuildQueue(
            fenced, limits, tuning_context, lease.report_activity, self._cpu
        )
        self._job_poller = JobPoller(
            loader,
            tuning_context,
            self._coordinator,
            self._cpu,
            lambda: self._build_queue.is_building,
        )
        self._retention = RetentionTask(fenced, tuning_context.cpu_gate)

    def run(self) -> None:
        """Run until an error or an interrupt ends the worker; active jobs return to the queue.

        Raises:
            LeaseLost: If another process holds the lease.
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        event_loop.run(self._run())

    async def _run(self) -> None:
        parts = {
            "coordinator": self._coordinator.serve(),
            "lease-keeper": self._keep_lease(),
            "job-poller": self._job_poller.run(),
            "build-queue": self._build_queue.run(),
            "retention": self._retention.run(),
        }
        tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        try:
            # Parts end by errors alone.
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                # An interrupt cancels every task of the loop; a second request would cut short
                # what a part does at its end.
                if not task.cancelling():
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            task.result()

    async def _keep_lease(self) -> None:
        """Check the lease, which a thread renews, and report progress and idleness."""
        while True:
            self._lease.check()
            self._lease.report_progress()
            if not (
                self._coordinator.active_job_ids
                or self._job_poller.is_loading
                or self._build_queue.is_building
            ):
                reason = self._cpu.problem or "waiting for jobs"
                if self._tuning_context.lacks_disk:
                    reason = disk_floor.WAITING
                self._lease.report_activity(None, reason)
            await asyncio.sleep(_LEASE_CHECK_INTERVAL_SECS)

    def _wait_for_lock(self, waited_secs: float) -> bool:
        """Wait for the database in the main loop, which is not stuck by that."""
        self._lease.report_progress()
        return wait_for_lock(waited_secs)

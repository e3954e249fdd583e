"""The part of a service worker that finds submitted jobs, loads them and has them admitted."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from records.models import Job
from records.tuning import attempts
from tuner.service.background import run_beside_measurements, run_between_measurements
from tuner.service.cpu_hold import CpuHold
from tuner.service.loading.job_loader import JobLoader
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS

_POLL_INTERVAL_SECS = 0.5
# A slow load holds up no other job; more at once would take too much memory, because each may use
# half of the machine's by default.
MAX_CONCURRENT_LOADS = 2


class JobPoller:
    """Claims jobs, owner by owner in turn, and loads a few of them at once.

    The last free place is for an owner who has none, so that no owner waits for the slow models of
    another.

    Without free disk space it claims none. The processes that load a job are killed within a second
    when it is cancelled, paused or deleted.

    A job that several processes died over is loaded apart from other suspects, see
    :mod:`records.tuning.attempts`.

    The CPU is held from the claim of a job until no job is left; while another process measures
    on it, jobs wait.

    Args:
        context: Context of the coordinator.
        coordinator: Coordinator that admits the jobs, in the same event loop.
        cpu: Hold on this machine's CPU.
        is_building: Returns whether a library is being built, which needs the CPU as well.
    """

    def __init__(
        self,
        loader: JobLoader,
        context: TuningContext,
        coordinator: Coordinator,
        cpu: CpuHold,
        is_building: Callable[[], bool],
    ) -> None:
        self._loader = loader
        self._context = context
        self._coordinator = coordinator
        self._cpu = cpu
        self._is_building = is_building
        self._loads: dict[asyncio.Task[None], Job] = {}

    @property
    def is_loading(self) -> bool:
        """True while a model is being loaded."""
        return bool(self._loads)

    async def run(self) -> None:
        """Poll until cancelled; jobs that are being loaded then return to the queue.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        try:
            while True:
                for load in [load for load in self._loads if load.done()]:
                    del self._loads[load]
                    load.result()
                may_load = len(self._loads) < MAX_CONCURRENT_LOADS and not self._context.lacks_disk
                if may_load and await self._start_load():
                    continue
                is_idle = not self._loads and not self._coordinator.active_job_ids
                if is_idle and not self._is_building():
                    self._cpu.release()
                # Wait for the poll interval, or until a load ends.
                if self._loads:
                    await asyncio.wait(
                        self._loads,
                        timeout=_POLL_INTERVAL_SECS,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                else:
                    await asyncio.sleep(_POLL_INTERVAL_SECS)
        finally:
            for load in self._loads:
                load.cancel()
            with suppress(*FATAL_DB_ERRORS):  # the next coordinator finds them as they are
                self._loader.requeue()

    async def _start_load(self) -> bool:
        """Claim a job and start to load it; returns whether one was waiting."""
        loading = self._loads.values()
        busy = self._coordinator.active_job_ids | {job.id for job in loading}
        is_last = len(self._loads) == MAX_CONCURRENT_LOADS - 1
        # Without tokens there are no owners between whom to be fair.
        served = {job.owner for job in loading if job.owner is not None} if is_last else set()
        turn = self._context.suspect_turn
        may_be_suspect = turn.try_take()
        job = None
        try:
            job = await run_between_measurements(
                self._context.cpu_gate,
                lambda: self._loader.claim(
                    busy,
                    with_suspects=may_be_suspect,
                    served_owners=served,
                    may_begin=self._cpu.try_acquire,
                ),
                "claim-job",
            )
        finally:
            is_suspect = job is not None and job.attempts > attempts.SUSPECT_DEATHS
            if may_be_suspect and not is_suspect:
                turn.give_back()
        if job is None:
            return False
        load = asyncio.create_task(self._load(job), name=f"load-job-{job.id}")
        if is_suspect:
            load.add_done_callback(lambda _: turn.give_back())
        self._loads[load] = job
        return True

    async def _load(self, job: Job) -> None:
        name = f"load-job-{job.id}"
        loaded = await run_beside_measurements(
            self._context.cpu_gate,
            lambda: self._loader.load(job),
            name,
            lambda: self._loader.is_wanted(job.id),
        )
        session = None if loaded is None else self._loader.open(self._context, loaded)
        if session is not None:
            self._coordinator.admit(session)

"""Dependencies that the sessions of one coordinator share."""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sqlalchemy.orm import Session, sessionmaker

from records import measure_records, picks, targets
from records.models import Pick
from records.picks import NewPick
from records.tuning import suspects
from records.tuning.suspects import Blame
from tuner.devices.device import Device
from tuner.engines.base import Candidate, TargetInfo
from tuner.errors import DeviceBusy, TargetError
from tuner.executors.base import Executor
from tuner.files.disk_floor import DiskWatch
from tuner.measure.context import MeasureContext
from tuner.measure.crash_counts import CrashCounts
from tuner.tuning.job.suspects import SuspectTurn, UnsettledAttempts
from tuner.tuning.tasks.cost_model_manager import CostModelManager
from tuner.tuning.tasks.task_state_cache import TaskStateCache
from tuner.tuning.writing.progress_throttle import ProgressThrottle
from tuner.tuning.writing.record_writer import RecordWriter, WritePolicy

if TYPE_CHECKING:
    from tuner.devices.runners.base import Runner


class TuningContext:
    """Workers, devices, caches and writers of one run of a coordinator.

    Made for one run, and used in the thread of its event loop.

    Attributes:
        sessions: Factory of database sessions that write.
        executor: Builders and runners.
        measure_context: Dependencies of measurements.
        cpu_gate: Gate that keeps builders from disturbing a CPU that is timed.
        record_writer: Writer of trials and of other frequent changes.
        progress_throttle: Limit on how often the status of jobs is published.
        in_flight: Candidates of running rounds, by task and pick; no other round proposes them.
        devices: Present devices, by name.
        suspect_turn: Turn of work that several processes died over; see
            :mod:`records.tuning.attempts`.
        unsettled: Attempts that could not be taken back without a database.
        disk: Watch over the free disk space of a service; None for a command.
        targets_with_peaks: Targets whose peaks are known.
        peaks_wait_until: Time of the next attempt to measure those of others, by id.
        worker: Name of this process in the database; empty outside the service.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        executor: Executor,
        data_dir: Path,
        *,
        worker: str = "",
        unsettled: UnsettledAttempts | None = None,
        disk: DiskWatch | None = None,
    ) -> None:
        self.sessions = sessions
        self.executor = executor
        self.worker = worker
        self.record_writer = RecordWriter(sessions)
        with sessions() as session:
            crash_counts = CrashCounts(suspects.all_suspects(session), self._store_blame)
        self.measure_context = MeasureContext(executor, data_dir, crash_counts=crash_counts)
        self.cpu_gate = self.measure_context.cpu_gate
        self.suspect_turn = SuspectTurn()
        self.unsettled = unsettled or UnsettledAttempts()
        self.disk = disk
        self.task_states = TaskStateCache(sessions, self.now, self.record_writer.flush)
        self.progress_throttle = ProgressThrottle(self.now)
        self.in_flight: dict[int, dict[int, list[Candidate]]] = defaultdict(dict)
        self.devices: dict[str, Device] = {}
        self.targets_with_peaks: set[int] = set()
        self.peaks_wait_until: dict[int, float] = {}
        self._present: tuple[list[Runner], int] | None = None
        self._clock_references: dict[int, float] = {}
        # Jobs hold those that they use: each has thousands of records in memory.
        self._cost_model_managers: WeakValueDictionary[tuple[int, str, int], CostModelManager] = (
            WeakValueDictionary()
        )

    def now(self) -> float:
        """Return the seconds of a clock that never goes back."""
        return time.monotonic()

    @property
    def lacks_disk(self) -> bool:
        """True while a service has too little free disk space to begin anything."""
        return self.disk is not None and self.disk.is_short

    @property
    def has_multiple_devices(self) -> bool:
        """True if several devices are present."""
        return len(self.devices) > 1

    def refresh(self) -> None:
        """Update the devices to the runners that are present, and what depends on their number."""
        present = [*self.executor.runners], self.executor.n_builders
        if present == self._present:
            return
        self._present = present
        runners = {runner.name: runner for runner in self.executor.runners}
        kept = {
            name: device
            for name, device in self.devices.items()
            if runners.get(name) is device.runner
        }
        self.devices = {name: kept.get(name) or Device(runners[name]) for name in runners}
        others = [each for each in self.devices.values() if not each.runner.shares_cores]
        for device in others:
            device.n_builders = self.executor.n_builders // len(others)
        self.record_writer.policy = WritePolicy.for_devices(len(self.devices))
        self.progress_throttle.is_limiting = self.has_multiple_devices

    async def device_for(self, target: TargetInfo) -> Device:
        """Return a device that supports a target.

        Raises:
            TargetError: If no present device does.
            DeviceBusy: If all that might are in use by other processes.
        """
        self.refresh()
        busy: DeviceBusy | None = None
        for device in self.devices.values():
            try:
                await device.query(target)
            except DeviceBusy as error:
                busy = error
                continue
            if device.supports(target):
                return device
        raise busy or TargetError(f"no device here runs target {target.spec}")

    def store_picks(self, new: Sequence[NewPick]) -> list[Pick]:
        """Store picks in one transaction, each with the newest record that its round may know."""
        with self.sessions.begin() as session:
            newest = {"newest_record": measure_records.newest_id(session)}
            complete = [pick._replace(terms=pick.terms | newest) for pick in new]
            return picks.add_picks(session, complete)

    def _store_blame(self, blame: Blame) -> None:
        self.record_writer.write_grouped(suspects.add_blames, blame)

    def clock_factor(self, target_id: int, clock_secs: float | None) -> float | None:
        """Return the factor that divides the drift of a device's clock out of a latency.

        Args:
            clock_secs: Time of the engine's clock kernel on the device; None if it was not timed.
        """
        if clock_secs is None:
            return None
        if target_id not in self._clock_references:
            with self.sessions.begin() as session:
                reference = targets.clock_reference(session, target_id, clock_secs)
            self._clock_references[target_id] = reference
        return self._clock_references[target_id] / clock_secs

    def cost_model_manager(self, target_id: int, kind: str, seed: int) -> CostModelManager:
        """Return the manager of a cost model, which the sessions on one target share."""
        key = (target_id, kind, seed)
        manager = self._cost_model_managers.get(key)
        if manager is None:
            manager = CostModelManager(self.sessions, self.executor, *key)
            self._cost_model_managers[key] = manager
        return manager

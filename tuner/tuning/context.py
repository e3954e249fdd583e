"""What the sessions of one coordinator share: workers, devices, and what is known and written."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session, sessionmaker

from records import measure_records, picks
from records.models import Pick
from records.picks import NewPick
from tuner.devices.device import Device
from tuner.engines.base import Candidate, TargetInfo
from tuner.errors import DeviceBusy, TargetError
from tuner.executors.base import Executor
from tuner.measure.context import MeasureContext
from tuner.tuning.cost_model_manager import CostModelManager
from tuner.tuning.progress_throttle import ProgressThrottle
from tuner.tuning.record_writer import RecordWriter
from tuner.tuning.task_state_cache import TaskStateCache
from tuner.tuning.write_policy import WritePolicy

if TYPE_CHECKING:
    from tuner.devices.runners.base import Runner


class TuningContext:
    """Opened for one run of a coordinator, in its event loop.

    Attributes:
        sessions: Opens database sessions that write.
        executor: Builders and runners.
        measure_context: Dependencies of measurements.
        cpu_gate: Keeps builders from disturbing a CPU that is timed.
        task_states: The tasks.
        record_writer: Writes trials.
        in_flight: Candidates of rounds under way, by task and pick: nobody proposes them again.
        progress_throttle: Limits how often the status of jobs is published.
        devices: By name; those that went away are not among them.
        worker: Name of this process, as others know it; empty if they do not.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        executor: Executor,
        data_dir: Path,
        *,
        worker: str = "",
    ) -> None:
        self.sessions = sessions
        self.executor = executor
        self.worker = worker
        self.measure_context = MeasureContext(executor, data_dir)
        self.cpu_gate = self.measure_context.cpu_gate
        self.record_writer = RecordWriter(sessions)
        self.task_states = TaskStateCache(sessions, self.now, self.record_writer.flush)
        self.in_flight: dict[int, dict[int, list[Candidate]]] = defaultdict(dict)
        self.devices: dict[str, Device] = {}
        self._runners: list[Runner] | None = None
        self._cost_model_managers: dict[tuple[int, str, int], CostModelManager] = {}
        self.progress_throttle = ProgressThrottle(self.now)

    def now(self) -> float:
        """Seconds by the clock of the loop, which may be a simulated one; never going back."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return time.monotonic()

    def refresh(self) -> None:
        """Look which devices are there."""
        if self.executor.runners == self._runners:
            return
        self._runners = list(self.executor.runners)
        runners = {runner.name: runner for runner in self.executor.runners}
        kept = {
            name: device
            for name, device in self.devices.items()
            if runners.get(name) is device.runner
        }
        self.devices = {name: kept.get(name) or Device(runners[name]) for name in runners}
        self.record_writer.policy = WritePolicy.for_devices(len(self.devices))
        self.progress_throttle.is_limiting = self.has_multiple_devices

    async def device_for(self, target: TargetInfo) -> Device:
        """Return a device that measures for a target.

        Raises:
            TargetError: If there is none.
            DeviceBusy: If another process measures on those that there are.
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
        """Store decisions in one transaction, with the newest record that their rounds may know."""
        with self.sessions.begin() as session:
            newest = {"newest_record": measure_records.newest_id(session)}
            known = [each._replace(terms=each.terms | newest) for each in new]
            return picks.add_picks(session, known)

    @property
    def has_multiple_devices(self) -> bool:
        """Whether several devices are in use."""
        return len(self.devices) > 1

    def cost_model_manager(self, target_id: int, kind: str, seed: int) -> CostModelManager:
        """Return the keeper of a cost model; sessions on one target share it."""
        key = (target_id, kind, seed)
        if key not in self._cost_model_managers:
            self._cost_model_managers[key] = CostModelManager(self.sessions, self.executor, *key)
        return self._cost_model_managers[key]

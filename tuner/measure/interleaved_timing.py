"""Timing of verified candidates of one task in turns, to choose between them."""

from collections.abc import Callable, Sequence

from tuner.devices.device import Device
from tuner.engines.base import RunRequest, RunResult
from tuner.errors import DeviceLost, DiskFull, WorkError
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.crash_counts import QUARANTINED
from tuner.measure.disk_space import raise_if_full
from tuner.measure.references import ensure_references
from tuner.measure.round_builds import CandidateBuilder
from tuner.measure.worker_calls import call_with_retry
from tuner.workers import result_validation
from tuner.workers.base import CallTimeout


class InterleavedTiming:
    """Race of verified traces; each is verified again before and after its turns.

    The traces are built once, and timed as often as :meth:`time` is called, so that a race can be
    spread over minutes.

    Args:
        setup: Target and settings.
    """

    def __init__(self, setup: MeasureSetup, task: TaskUnderTest, traces: Sequence[str]) -> None:
        self._setup = setup
        self._builder = CandidateBuilder(setup)
        self._task = task
        self._traces = traces
        self._built: list[str | RunResult] = []
        self._references: tuple[str, ...] = ()

    @property
    def n_builders(self) -> int:
        """Number of builds that can run at the same time now."""
        return self._setup.context.executor.n_builders

    async def build(self) -> None:
        """Build the traces; without references none of them is timed.

        Raises:
            DiskFull: If the disk is full.
        """
        self._built = await self._builder.build_all(self._task, self._traces)
        try:
            self._references = await ensure_references(self._setup, self._task)
        except DiskFull:
            raise
        except WorkError as error:
            self.close()
            self._built = [result_validation.failed("run_error", error)] * len(self._traces)

    async def time(
        self,
        indices: Sequence[int],
        device: Device,
        *,
        n_turns: int,
        on_begin: Callable[[], None] = lambda: None,
    ) -> list[RunResult]:
        """Time some of the traces in turns.

        Args:
            indices: Positions of the traces.
            device: Device that times them, once no round uses it.
            on_begin: Called once no round uses the device.

        Returns:
            A result for each index: all samples of its turns, or its error.

        Raises:
            DiskFull: If the disk is full.
            DeviceLost: If the device was lost.
        """
        crash_counts = self._setup.context.crash_counts
        # Sorted, because their order depends on the heat before.
        raced = (self._task.task_id, " ".join(sorted(self._traces[index] for index in indices)))
        built = [self._built[index] for index in indices]
        artifacts = [artifact for artifact in built if isinstance(artifact, str)]
        if crash_counts.is_quarantined(*raced):
            return [QUARANTINED] * len(indices)
        timed: list[RunResult] = []
        if artifacts:
            try:
                async with device.exclusive(self._setup.context.cpu_gate, self._setup.target):
                    on_begin()
                    with crash_counts.blame_on_device_loss(*raced):
                        timed = await self._time_artifacts(artifacts, device, n_turns)
            except DeviceLost:
                if not crash_counts.is_quarantined(*raced):
                    raise
                return [QUARANTINED] * len(indices)
        results = iter(timed)
        return [result if isinstance(result, RunResult) else next(results) for result in built]

    def close(self) -> None:
        """Remove what was built."""
        self._builder.discard(artifact for artifact in self._built if isinstance(artifact, str))
        self._built = []

    async def _time_artifacts(
        self, artifacts: Sequence[str], device: Device, n_turns: int
    ) -> list[RunResult]:
        setup = self._setup
        requests = [
            RunRequest(artifact, setup.target, self._references, setup.evaluator)
            for artifact in artifacts
        ]
        timeout = setup.evaluator.timeout_secs * len(artifacts) * n_turns
        try:
            timed = await call_with_retry(
                lambda: device.runner.measure(
                    "run_interleaved", requests, n_turns, timeout_secs=timeout
                )
            )
        except DeviceLost:
            raise
        except (CallTimeout, WorkError, OSError) as error:
            raise_if_full(error)
            return [result_validation.failed("run_error", error)] * len(artifacts)
        if not isinstance(timed, list) or len(timed) != len(artifacts):
            return [result_validation.malformed("run_error", timed)] * len(artifacts)
        return [result_validation.validate_run(result) for result in timed]

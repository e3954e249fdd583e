"""Measurement of the candidates of one round: build, verify, time."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tuner.devices.device import Device
from tuner.engines.base import Candidate, RunRequest, RunResult
from tuner.errors import DeviceFull, DeviceLost, DiskFull, OutOfMemory, WorkError
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.crash_counts import QUARANTINED
from tuner.measure.references import discard_references, ensure_references
from tuner.measure.round_builds import RoundBuilds
from tuner.measure.worker_calls import RUNNING, result_of
from tuner.workers import result_validation

# Blame for a lost device of a candidate that only waited for its turn. Without any, a device
# that is lost as soon as a second run is requested would be lost forever.
_BYSTANDER_SHARE = 0.5
# Time for which a round has the cores and does not look whether its job was stopped; one candidate
# may take longer.
_MAX_HOLD_SECS = 30.0
_STOPPED = "the job was stopped during the round"


class RoundStopped(WorkError):  # noqa: N818  it names an event
    """A round whose job was paused or cancelled; some candidates have no result."""


class MeasureCallbacks(Protocol):
    """Receiver of the results of a round, called in the thread of the event loop."""

    def on_device_acquired(self) -> None:
        """React to the start of timing, whenever the device is free for this round."""

    def on_result(self, candidate: Candidate, result: RunResult) -> None:
        """Receive the result of a candidate as soon as it is known.

        On a device that shares its cores, the next candidate is timed after this returns.
        """


async def run_artifact(
    setup: MeasureSetup,
    artifact: str,
    device: Device,
    references: tuple[str, ...],
    best_secs: float,
) -> RunResult:
    """Verify and time an artifact on a device that the caller has acquired.

    Args:
        setup: Target and settings.
        references: Files with expected outputs; empty to skip verification.
        best_secs: Latency from which on it is timed briefly, seconds.

    Returns:
        The samples, or the error.

    Raises:
        DiskFull: If the disk is full.
        DeviceLost: If the device was lost.
    """
    request = RunRequest(artifact, setup.target, references, setup.evaluator, best_secs)
    timeout = setup.evaluator.timeout_secs
    return await result_of(
        RUNNING,
        lambda: device.runner.measure("run", request, timeout_secs=timeout),
        result_validation.validate_run,
        timeout,
        setup.context.data_dir,
    )


class RoundMeasurement:
    """Measurement of one round on one device.

    On a device that shares its cores with builders, candidates are timed after all are built; on
    any other, each is timed as soon as it is built and the device is free. The failure of a
    candidate is its result, never an error of the round.

    Args:
        setup: Target and settings.
        task: Task of the candidates.
        device: Device that runs them.
        callbacks: Receiver of the results.
        may_continue: Asked between two candidates, seldom; False ends the round.
    """

    def __init__(
        self,
        setup: MeasureSetup,
        task: TaskUnderTest,
        device: Device,
        callbacks: MeasureCallbacks,
        may_continue: Callable[[], bool] = lambda: True,
    ) -> None:
        self._setup = setup
        self._task = task
        self._device = device
        self._callbacks = callbacks
        self._references: tuple[str, ...] = ()
        self._best_secs = task.best_secs
        # Candidates whose run was requested of the device, which runs the first.
        self._requested: list[Candidate] = []
        self._is_loss_blamed = False
        self._may_continue = may_continue
        self._next_look = 0.0
        self._is_stopped = False

    async def measure(self, candidates: Sequence[Candidate]) -> None:
        """Measure candidates; the callbacks receive each result.

        Raises:
            DiskFull: If the disk is full; a candidate that failed because of it has no result.
            OutOfMemory: If the expected outputs do not fit into memory.
            DeviceLost: If the device was lost; some candidates have no result.
            RoundStopped: If it may not continue; some candidates have no result.
        """
        self._next_look = asyncio.get_running_loop().time() + _MAX_HOLD_SECS
        try:
            if self._device.runner.shares_cores:
                await self._measure_after_building(candidates)
            else:
                await self._measure_while_building(candidates)
        finally:
            discard_references(self._setup, self._references)

    async def _measure_after_building(self, candidates: Sequence[Candidate]) -> None:
        """Report failed builds first, then time the others in their order.

        Builders compute the references beside the builds.
        """
        builds = RoundBuilds(self._setup, self._task, candidates)
        try:
            if not await self._find_references(candidates):
                return
            artifacts: deque[tuple[Candidate, str]] = deque()
            # Numbers differ, so that nothing else is compared.
            for _, candidate, outcome in sorted([each async for each in builds]):
                if isinstance(outcome, RunResult):
                    self._callbacks.on_result(candidate, outcome)
                else:
                    artifacts.append((candidate, outcome))
            await self._time_in_turns(builds, artifacts)
        finally:
            builds.close()

    async def _time_in_turns(
        self, builds: RoundBuilds, artifacts: deque[tuple[Candidate, str]]
    ) -> None:
        """Time artifacts; in a long round, what waits for the cores has them now and then."""
        cpu_gate, loop = self._setup.context.cpu_gate, asyncio.get_running_loop()
        while True:
            async with self._device.exclusive(cpu_gate, self._setup.target):
                self._callbacks.on_device_acquired()
                deadline = loop.time() + _MAX_HOLD_SECS
                while artifacts:
                    if self._must_stop():
                        raise RoundStopped(_STOPPED)
                    await self._time(builds, *artifacts.popleft())
                    if loop.time() >= deadline:
                        break
            if not artifacts:
                return
            await cpu_gate.give_way()

    async def _measure_while_building(self, candidates: Sequence[Candidate]) -> None:
        """Time candidates in the order in which their builds end."""
        builds = RoundBuilds(self._setup, self._task, candidates)
        try:
            if not await self._find_references(candidates):
                return
            async with self._device.exclusive(self._setup.context.cpu_gate, self._setup.target):
                self._callbacks.on_device_acquired()
                n_lanes = 1 + self._device.runner.n_ahead
                lanes = [asyncio.ensure_future(self._time_next(builds)) for _ in range(n_lanes)]
                try:
                    await asyncio.gather(*lanes)
                    if self._is_stopped:
                        raise RoundStopped(_STOPPED)
                finally:
                    for lane in lanes:
                        lane.cancel()
        finally:
            builds.close()

    async def _find_references(self, candidates: Sequence[Candidate]) -> bool:
        """Find the references; without them all candidates fail, and False is returned.

        Raises:
            DiskFull: If the disk is full.
            OutOfMemory: If they do not fit into memory: they would not in the next round either.
        """
        try:
            self._references = await ensure_references(self._setup, self._task)
        except (DiskFull, OutOfMemory):
            raise
        except WorkError as error:
            for candidate in candidates:
                self._callbacks.on_result(candidate, result_validation.failed("run_error", error))
            return False
        return True

    async def _time_next(self, builds: RoundBuilds) -> None:
        """Time builds that no other lane has taken, one after the other."""
        async for _, candidate, outcome in builds:
            if isinstance(outcome, RunResult):
                self._callbacks.on_result(candidate, outcome)
            elif self._must_stop():
                return
            else:
                await self._time(builds, candidate, outcome)

    def _must_stop(self) -> bool:
        """Return whether the job was stopped; its row is read seldom."""
        now = asyncio.get_running_loop().time()
        if not self._is_stopped and now >= self._next_look:
            self._next_look = now + _MAX_HOLD_SECS
            self._is_stopped = not self._may_continue()
        return self._is_stopped

    async def _time(self, builds: RoundBuilds, candidate: Candidate, artifact: str) -> None:
        """Time an artifact, unless its candidate was quarantined since it was proposed."""
        if self._is_quarantined(candidate):
            builds.discard(artifact)
            self._callbacks.on_result(candidate, QUARANTINED)
            return
        self._requested.append(candidate)
        try:
            result = await run_artifact(
                self._setup,
                artifact,
                self._device,
                self._references,
                self._best_secs,
            )
        except DeviceLost as error:
            if not isinstance(error, DeviceFull):
                self._blame(candidate)
            raise
        finally:
            self._requested.remove(candidate)
            builds.discard(artifact)
        self._best_secs = min(self._best_secs, *(result.run_secs or (self._best_secs,)))
        self._callbacks.on_result(candidate, result)

    def _blame(self, candidate: Candidate) -> None:
        """Blame a candidate for the loss of the device that ran it, or was asked to."""
        if self._is_loss_blamed:
            return
        self._is_loss_blamed = self._requested[0] is candidate
        self._setup.context.crash_counts.blame(
            self._task.task_id,
            candidate.trace,
            1.0 if self._is_loss_blamed else _BYSTANDER_SHARE,
        )
        if self._is_quarantined(candidate):
            self._callbacks.on_result(candidate, QUARANTINED)

    def _is_quarantined(self, candidate: Candidate) -> bool:
        return self._setup.context.crash_counts.is_quarantined(self._task.task_id, candidate.trace)

"""Building of candidates: traces to artifacts."""

import asyncio
from collections.abc import Iterable, Sequence

from tuner.engines.base import BuildRequest, RunResult
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.worker_calls import BUILDING, result_of
from tuner.workers import result_validation


class CandidateBuilder:
    """Builder of candidates for one target; the artifacts belong to the caller."""

    def __init__(self, setup: MeasureSetup) -> None:
        self._setup = setup
        self._executor = setup.context.executor

    async def build(self, task: TaskUnderTest, trace: str) -> str | RunResult:
        """Build a trace.

        Returns:
            Name of the artifact, or the error.

        Raises:
            DiskFull: If the disk is full.
        """
        request = BuildRequest(task.ir, self._setup.target, trace)
        timeout = self._setup.build_timeout_secs
        return await result_of(
            BUILDING,
            lambda: self._executor.build(request, timeout_secs=timeout),
            result_validation.validate_build,
            timeout,
            self._setup.context.data_dir,
        )

    async def build_all(self, task: TaskUnderTest, traces: Sequence[str]) -> list[str | RunResult]:
        """Build traces side by side, while no CPU is timed.

        Returns:
            For each trace the name of its artifact, or its error.

        Raises:
            DiskFull: If the disk is full.
        """
        async with self._setup.context.cpu_gate.shared():
            builds = [asyncio.ensure_future(self.build(task, trace)) for trace in traces]
            try:
                return await asyncio.gather(*builds)
            except BaseException:
                # The caller gets no names, and cannot remove what the others have built.
                built = await asyncio.gather(*builds, return_exceptions=True)
                self.discard(each for each in built if isinstance(each, str))
                raise

    def discard(self, artifacts: Iterable[str]) -> None:
        """Remove artifacts; ignore artifacts that are gone."""
        for artifact in artifacts:
            self._executor.discard(artifact)

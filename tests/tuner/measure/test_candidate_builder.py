"""Builds that fail together leave no artifact behind."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from tuner.engines.base import BuildRequest, BuildResult, EvaluatorSettings
from tuner.errors import DiskFull
from tuner.measure.context import MeasureContext, MeasureSetup, TaskUnderTest
from tuner.measure.round_builds import CandidateBuilder
from tuner.tuning import event_loop


class Builders:
    """Builders that find the disk full for some traces, at once."""

    n_builders = 2

    def __init__(self) -> None:
        self.discarded: list[str] = []

    async def build(self, request: BuildRequest, *, timeout_secs: float) -> BuildResult:
        """Build after a while."""
        assert timeout_secs > 0
        if request.trace == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for _ in range(5):
            await asyncio.sleep(0)
        return BuildResult(request.trace)

    def discard(self, artifact: str) -> None:
        """Note the artifact."""
        self.discarded.append(artifact)


def test_artifacts_of_other_traces_are_removed_if_the_disk_is_full(tmp_path: Path) -> None:
    """Those that are still being built, too."""
    builders = Builders()
    context = MeasureContext(builders, tmp_path)  # type: ignore[arg-type]  # all that is used
    setup = MeasureSetup(context, "target", EvaluatorSettings(), 1.0)
    task = TaskUnderTest(1, "work", b"ir")

    with pytest.raises(DiskFull):
        event_loop.run(CandidateBuilder(setup).build_all(task, ["one", "full", "two"]))

    assert builders.discarded == ["one", "two"]

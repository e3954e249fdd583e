"""Artifacts of the local executor, and the folders that builds leave behind."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import toy
from tuner.engines.base import BuildRequest
from tuner.errors import WorkError
from tuner.executors.local import LocalExecutor
from tuner.settings import Settings
from tuner.workers.confinement.sandbox_paths import scratch_folder

GOOD = BuildRequest(json.dumps({"workload": "a"}).encode(), toy.SPEC, "trace")
BAD = BuildRequest(b"not JSON", toy.SPEC, "trace")


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[LocalExecutor]:
    """One builder of the toy engine."""
    with LocalExecutor(Settings("", tmp_path, toy.NAME, 1), runners=[]) as opened:
        yield opened


def left_by(executor: LocalExecutor, folder: Path) -> list[Path]:
    """Return the folders that are left once all earlier calls have ended."""
    executor.submit("describe_target", "llvm", timeout_secs=30.0).result()
    return list(scratch_folder(folder).iterdir())


def test_an_artifact_stays_until_it_is_discarded(executor: LocalExecutor, tmp_path: Path) -> None:
    """It is a folder in the scratch folder of the executor."""
    built = executor.build(GOOD, timeout_secs=30.0).result()
    assert left_by(executor, tmp_path) == [Path(built.artifact)]

    executor.discard(built.artifact)
    assert left_by(executor, tmp_path) == []


def test_a_build_that_fails_leaves_nothing(executor: LocalExecutor, tmp_path: Path) -> None:
    """Its folder is removed."""
    with pytest.raises(WorkError):
        executor.build(BAD, timeout_secs=30.0).result()

    assert left_by(executor, tmp_path) == []


def test_a_build_that_is_cancelled_leaves_nothing(executor: LocalExecutor, tmp_path: Path) -> None:
    """It runs to its end, and its folder is removed."""

    async def give_up() -> None:
        async def build() -> None:
            await executor.build(GOOD, timeout_secs=30.0)

        building = asyncio.ensure_future(build())
        await asyncio.sleep(0)
        building.cancel()
        await asyncio.gather(building, return_exceptions=True)

    asyncio.run(give_up())

    assert left_by(executor, tmp_path) == []

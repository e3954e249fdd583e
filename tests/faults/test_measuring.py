"""References and finals whose workers fail, without a coordinator that would try again."""

from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.engines import toy
from tests.engines.faults import checksum
from tests.faults.conftest import Hall
from tuner.devices.device import Device
from tuner.engines.base import Candidate, EvaluatorSettings, RunResult
from tuner.errors import WorkError
from tuner.executors.local import LocalExecutor
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.interleaved_timing import InterleavedTiming
from tuner.measure.references import discard_references, ensure_references
from tuner.measure.round_measurement import RoundMeasurement
from tuner.tuning import event_loop

TASK = TaskUnderTest(1, "work", toy.make_task("work", weight=1, base_secs=1e-3).ir)
TRACES = [f'{{"task": "work", "program": {number}}}' for number in (1, 2)]
Answer = TypeVar("Answer")


def start(hall: Hall) -> tuple[MeasureSetup, Device]:
    """Return a setup and a device, for one event loop."""
    hall.context.refresh()
    device = next(iter(hall.context.devices.values()))
    evaluator = EvaluatorSettings(min_repeat_ms=0, timeout_secs=2.0)
    return MeasureSetup(hall.context.measure_context, toy.SPEC, evaluator, 2.0), device


def finish(hall: Hall, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine in an event loop of its own."""
    try:
        return event_loop.run(work)
    finally:
        hall._context = None


def references(hall: Hall, task: TaskUnderTest = TASK) -> list[Path]:
    """Compute the references of a task."""

    async def work() -> tuple[str, ...]:
        setup, _ = start(hall)
        return await ensure_references(setup, task)

    return [Path(path) for path in finish(hall, work())]


class Results:
    """Callbacks that collect the results of a round."""

    def __init__(self, results: list[RunResult]) -> None:
        self._results = results

    def on_device_acquired(self) -> None:
        """Timing starts."""

    def on_result(self, candidate: Candidate, result: RunResult) -> None:  # noqa: ARG002
        """Collect a result."""
        self._results.append(result)


def race(hall: Hall) -> list[RunResult]:
    """Time two traces in turns."""

    async def work() -> list[RunResult]:
        setup, device = start(hall)
        timing = InterleavedTiming(setup, TASK, TRACES)
        await timing.build()
        results = await timing.time(range(len(TRACES)), device, n_turns=2)
        timing.close()
        return results

    return finish(hall, work())


@pytest.mark.parametrize("fault", ["kill", "segfault", "escape"])
def test_final_that_fails_is_reported_for_every_finalist(hall: Hall, fault: str) -> None:
    """A final that cannot run results in errors, so that earlier records stand."""
    hall.control.inject(run_interleaved=[{"fault": fault}])

    results = race(hall)

    assert [result.run_secs for result in results] == [None, None]
    assert [result.error_kind for result in results] == ["run_error"] * 2


def test_finalist_that_does_not_build_costs_the_other_nothing(hall: Hall) -> None:
    """The other finalist is timed alone."""
    hall.control.inject(build=[{"fault": "segfault", "only": [checksum(TRACES[0])]}])

    first, second = race(hall)

    assert first.error_kind == "build_error"
    assert second.run_secs


@pytest.mark.parametrize("fault", ["kill", "exit"])
def test_reference_is_tried_again_when_its_worker_is_killed(hall: Hall, fault: str) -> None:
    """A worker that is killed while it computes a reference costs nothing."""
    hall.control.inject(reference=[{"fault": fault, "once": True}])

    assert all(path.is_file() for path in references(hall))
    assert hall.control.strikes("reference") == 2


@pytest.mark.parametrize("fault", ["escape", "segfault", "kill"])
def test_reference_that_fails_is_a_work_error(hall: Hall, fault: str) -> None:
    """A workload that cannot be verified raises WorkError, and leaves no partial reference."""
    hall.control.inject(reference=[{"fault": fault}])

    with pytest.raises(WorkError):
        references(hall)
    assert not list(hall.folder.rglob("work*"))


@pytest.mark.parametrize("fault", [None, "escape"])
def test_references_are_computed_beside_the_builds(
    hall: Hall, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    """Builders start to build first; without references no candidate is timed, and none is left."""
    if fault:
        hall.control.inject(reference=[{"fault": fault}])
    candidates = [Candidate(trace, trace, b"", 0.0) for trace in TRACES]
    results: list[RunResult] = []
    submitted: list[str] = []

    async def work() -> None:
        setup, device = start(hall)
        submit = LocalExecutor.submit

        def noting(executor: LocalExecutor, function: str, *args: Any, **options: Any) -> Any:
            submitted.append(function)
            return submit(executor, function, *args, **options)

        monkeypatch.setattr(LocalExecutor, "submit", noting)
        await RoundMeasurement(setup, TASK, device, Results(results)).measure(candidates)

    finish(hall, work())

    assert submitted[:2] == ["build", "build"]
    assert [result.error_kind for result in results] == [fault and "run_error"] * len(TRACES)


def test_reference_without_memory_fails_its_job_alone(hall: Hall) -> None:
    """No further round of the job computes it in vain, and the other job is tuned."""
    hall.control.inject(reference=[{"fault": "memory", "containing": "large_0"}])
    jobs = [hall.job_of(name, 12) for name in ("large", "small")]

    hall.run(*jobs)

    failed, done = (hall.job(job.job_id) for job in jobs)
    assert (failed.state, done.state) == ("failed", "done")
    assert "reference needs more memory than it may have" in (failed.message or "")
    assert hall.control.strikes("reference") <= 4


def test_each_round_has_a_reference_of_its_own(hall: Hall) -> None:
    """Equal seeds give equal content, in files that another round does not remove."""
    hall.control.inject()
    first, kept = references(hall, replace(TASK, input_seed=5))
    again, still_kept = references(hall, replace(TASK, input_seed=5))

    assert first != again
    assert first.read_bytes() == again.read_bytes()
    assert kept == still_kept

    async def discard() -> None:
        setup, _ = start(hall)
        discard_references(setup, [str(first), str(kept)])

    finish(hall, discard())
    assert [path.is_file() for path in (first, again, kept)] == [False, True, True]

"""Timing of verified candidates in turns, to choose between them; outputs are not compared."""

from collections.abc import Sequence
from dataclasses import replace

from tuner.devices.device import Device
from tuner.engines.base import RunRequest, RunResult
from tuner.errors import DeviceLost, WorkError
from tuner.measure.candidate_builder import CandidateBuilder
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.crash_counts import QUARANTINED
from tuner.measure.disk_space import raise_if_full
from tuner.measure.worker_calls import call_with_retry
from tuner.workers import result_validation
from tuner.workers.base import CallTimeout


async def compare(
    setup: MeasureSetup,
    task: TaskUnderTest,
    traces: Sequence[str],
    device: Device,
    *,
    n_turns: int,
    flush_bytes: int = 0,
) -> list[RunResult]:
    """Time verified traces again, in turns.

    Args:
        setup: Target and settings.
        task: Task of the traces.
        traces: Traces to compare.
        device: Device that times them.
        n_turns: Turns of each trace.
        flush_bytes: Bytes that are read before each sample, at least the private caches.

    Returns:
        A result for each trace: all samples of its turns, or its error.

    Raises:
        DiskFull: If the disk is full.
        DeviceLost: If the device was lost.
    """
    crash_counts, builder = setup.context.crash_counts, CandidateBuilder(setup)
    compared = (task.task_id, " ".join(traces))
    if crash_counts.is_quarantined(*compared):
        return [QUARANTINED] * len(traces)
    built = await builder.build_all(task, traces)
    artifacts = [artifact for artifact in built if isinstance(artifact, str)]
    if not artifacts:
        return [result for result in built if isinstance(result, RunResult)]
    try:
        async with device.exclusive(setup.context.cpu_gate, setup.target):
            with crash_counts.blame_on_device_loss(*compared):
                timed = await _time_in_turns(setup, artifacts, device, n_turns, flush_bytes)
    except DeviceLost:
        if not crash_counts.is_quarantined(*compared):
            raise
        return [QUARANTINED] * len(traces)
    finally:
        builder.discard(artifacts)
    results = iter(timed)
    return [result if isinstance(result, RunResult) else next(results) for result in built]


async def _time_in_turns(
    setup: MeasureSetup, artifacts: Sequence[str], device: Device, n_turns: int, flush_bytes: int
) -> list[RunResult]:
    evaluator = setup.evaluator
    if flush_bytes and evaluator.cache_flush:
        # Such a flush takes milliseconds, so one sample per turn has to suffice.
        evaluator = replace(evaluator, flush_bytes=flush_bytes, min_repeat_ms=0)
    requests = [RunRequest(artifact, setup.target, "", evaluator) for artifact in artifacts]
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

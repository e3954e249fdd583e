"""Files of reference outputs; the engine's ``run`` compares candidates with them."""

import hashlib
from pathlib import Path

from tuner.devices.device import Device
from tuner.engines.base import RunResult
from tuner.errors import DeviceLost, WorkerLost, WorkError
from tuner.measure.candidate_builder import CandidateBuilder
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.crash_counts import QUARANTINE_REASON
from tuner.measure.disk_space import raising_disk_full
from tuner.measure.worker_calls import call_with_retry
from tuner.workers.base import CallTimeout

_TIMEOUT_SECS = 300.0
_UNSCHEDULED = ""


async def ensure_reference(setup: MeasureSetup, task: TaskUnderTest, device: Device) -> str:
    """Return the path of a workload's expected output, computing it if it does not exist yet.

    Rounds that need the same reference at the same time wait for the one that computes it.

    Raises:
        DiskFull: If the disk is full.
        DeviceLost: If the device was lost.
        WorkError: If the unscheduled workload does not build or run, or is quarantined.
    """
    spec = hashlib.sha256(setup.target.encode()).hexdigest()[:16]
    path = setup.context.data_dir / "references" / spec / f"{task.workload}.npz"
    async with setup.context.reference_locks[str(path)]:
        if not path.is_file():
            await _make_reference(setup, task, device, path)
    return str(path)


async def _make_reference(
    setup: MeasureSetup, task: TaskUnderTest, device: Device, path: Path
) -> None:
    context, builder = setup.context, CandidateBuilder(setup)
    _refuse_quarantined(setup, task)
    with raising_disk_full():
        path.parent.mkdir(parents=True, exist_ok=True)
    (built,) = await builder.build_all(task, [_UNSCHEDULED])
    if isinstance(built, RunResult):
        raise WorkError(f"workload {task.workload} does not build unscheduled: {built.error_text}")
    try:
        async with device.exclusive(context.cpu_gate, setup.target):
            with context.crash_counts.blame_on_device_loss(task.task_id, _UNSCHEDULED):
                await _run(setup, built, path, device)
    except DeviceLost:
        _refuse_quarantined(setup, task)
        raise
    except WorkerLost as error:
        raise WorkError(f"workload {task.workload} does not run unscheduled: {error}") from error
    except CallTimeout as error:
        raise WorkError(
            f"workload {task.workload} runs longer than {_TIMEOUT_SECS:.0f} s unscheduled, so its "
            "candidates cannot be verified"
        ) from error
    finally:
        builder.discard([built])


async def _run(setup: MeasureSetup, artifact: str, path: Path, device: Device) -> None:
    """Run an unscheduled artifact, which writes its output to a file."""

    async def write_output() -> None:
        await device.runner.measure(
            "reference", artifact, setup.target, str(path), timeout_secs=_TIMEOUT_SECS
        )
        if not path.is_file():
            raise WorkerLost("it left no output")

    with raising_disk_full():
        await call_with_retry(write_output)


def _refuse_quarantined(setup: MeasureSetup, task: TaskUnderTest) -> None:
    if setup.context.crash_counts.is_quarantined(task.task_id, _UNSCHEDULED):
        raise WorkError(f"workload {task.workload} unscheduled: {QUARANTINE_REASON}")

"""Files of expected outputs; the engine's ``run`` compares candidates with them."""

import asyncio
import hashlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from tuner.engines.base import InputKind, ReferenceRequest
from tuner.errors import MalformedAnswer, OutOfMemory, WorkerLost, WorkError
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.disk_space import raising_disk_full
from tuner.measure.worker_calls import call_with_retry
from tuner.workers.base import CallTimeout
from tuner.workers.confinement.sandbox_paths import references_folder, scratch_folder

_TIMEOUT_SECS = 300.0
# Format and rules of the references; a change makes those on disk obsolete.
_VERSION = 3


async def ensure_references(setup: MeasureSetup, task: TaskUnderTest) -> tuple[str, ...]:
    """Return the files of a workload's expected outputs; compute missing ones.

    Builders compute them, so that no device under test takes part. The last is the one on whose
    inputs kernels are timed; it is the same in every round and kept. The first has inputs that are
    drawn again for each seed of the task. Rounds that need the same file at the same time wait for
    the one that computes it.

    Raises:
        DiskFull: If the disk is full.
        OutOfMemory: If the outputs do not fit into the memory of a builder.
        WorkError: If the workload has no reference.
    """
    whole = _ensure(setup, task, "whole", task.input_seed)
    real = _ensure(setup, task, "real", 0)
    return tuple(await asyncio.gather(whole, real))


def discard_references(setup: MeasureSetup, paths: Iterable[str]) -> None:
    """Remove those files that only one round uses."""
    folder = _own_folder(setup)
    for path in map(Path, paths):
        if path.parent == folder:
            path.unlink(missing_ok=True)


async def _ensure(setup: MeasureSetup, task: TaskUnderTest, kind: InputKind, seed: int) -> str:
    request = ReferenceRequest(task.ir, setup.target, kind, seed)
    if seed:
        # A round that continues on another device has a file of its own, with equal content.
        path = _own_folder(setup) / f"{task.workload}-{uuid.uuid4().hex}.npz"
        await _make(setup, task, request, path)
        return str(path)
    target = hashlib.sha256(setup.target.encode()).hexdigest()[:16]
    folder = references_folder(setup.context.data_dir) / target
    path = folder / f"{task.workload}-{kind}-{_VERSION}.npz"
    lock = setup.context.reference_locks.setdefault(str(path), asyncio.Lock())
    async with lock:
        try:
            os.utime(path)  # retention spares what was used lately
        except OSError:
            await _make(setup, task, request, path)
    return str(path)


def _own_folder(setup: MeasureSetup) -> Path:
    """Return the folder of files that one round uses; a later start removes what is left."""
    return scratch_folder(setup.context.data_dir) / "references"


async def _make(
    setup: MeasureSetup, task: TaskUnderTest, request: ReferenceRequest, path: Path
) -> None:
    async def compute() -> bytes:
        async with setup.context.cpu_gate.shared():
            try:
                content: bytes = await setup.context.executor.submit(
                    "reference", request, timeout_secs=_TIMEOUT_SECS
                )
            except MalformedAnswer as error:
                raise WorkerLost(str(error)) from error
        if not content:
            raise WorkerLost("the worker returned an empty reference")
        return content

    try:
        content = await call_with_retry(compute)
    except CallTimeout as error:
        raise WorkError(
            f"computing the expected output of workload {task.workload} takes longer than "
            f"{_TIMEOUT_SECS:.0f} s, so its candidates cannot be verified"
        ) from error
    except WorkError as error:
        kind = OutOfMemory if isinstance(error, OutOfMemory) else WorkError
        raise kind(f"workload {task.workload} cannot be verified: {error}") from error
    with raising_disk_full():
        path.parent.mkdir(parents=True, exist_ok=True)
        if request.seed:
            # Write a file whose name no other round has before it is complete.
            try:
                path.write_bytes(content)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        else:
            # Write a file that another process may make at the same time.
            partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
            try:
                partial.write_bytes(content)
                partial.rename(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise

"""The code of a record's candidate, compiled again for people."""

from collections.abc import Mapping, Sequence

from records import tasks
from records.errors import NoSuchRow
from records.models import MeasureRecord, Target, Task, Workload
from tuner.context import Context
from tuner.engines.base import BuildRequest, KernelPart
from tuner.engines.environments import ENGINES, RELAY
from tuner.errors import RequestError
from tuner.workers.factory import fresh_worker

_TIMEOUT_SECS = 300.0


def print_kernel(
    context: Context,
    record: int,
    parts: Sequence[KernelPart],
    *,
    max_bytes: int | None = None,
    share: float = 1.0,
) -> Mapping[str, str]:
    """Compile the candidate of a record again and return parts of its code.

    Args:
        context: Settings and database.
        record: Number of the record.
        max_bytes: Memory of the process that compiles; None for that of one with a network.
        share: Part of the cores that it may use.

    Raises:
        NoSuchRow: If the record does not exist.
        RequestError: If the engine of the record cannot print code, or a compiler is missing.
        WorkError: If the candidate cannot be compiled.
    """
    with context.readers() as session:
        row = session.get(MeasureRecord, record)
        if row is None:
            raise NoSuchRow(f"no record {record}")
        task = session.get_one(Task, row.task_id)
        engine = session.get_one(Workload, task.workload_id).engine
        target = session.get_one(Target, task.target_id).spec
        request = BuildRequest(tasks.workload_ir(session, task.id), target, row.trace)
    # The engine of a record is a module to import: only known ones are.
    if engine not in (context.settings.engine, *ENGINES.values()):
        raise RequestError(f"the engine {engine!r} is unknown")
    settings = context.settings.with_engine(engine)
    if settings.environment == RELAY:
        raise RequestError(f"the engine {RELAY} does not print the code of records")
    with fresh_worker(settings, max_bytes=max_bytes, share=share) as worker:
        code: Mapping[str, str] = worker.call(
            settings.engine, "print_kernel", request, parts, timeout_secs=_TIMEOUT_SECS
        )
    return code

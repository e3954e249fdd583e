"""The lease of the coordinator, and the names of processes."""

from sqlalchemy import select

from records import workers
from records.service_models import Worker
from tuner.context import Context
from tuner.service.coordinator_lease import CoordinatorLease


def test_processes_with_the_same_host_and_process_id_are_different(context: Context) -> None:
    """One of two containers holds the lease, and each has a row of its own."""
    first, second = CoordinatorLease(context.engine), CoordinatorLease(context.engine)
    with first, second:
        assert first.acquire() is not None
        assert second.acquire() is None
        with context.sessions() as session:
            names = session.scalars(select(Worker.name)).all()
            alive = [workers.is_alive(worker) for worker in workers.list_workers(session)]

    assert len(set(names)) == 2
    assert alive == [True, True]
    assert all(name.startswith(f"{first.host}:") for name in names)

"""A build for a GPU that is not there uses the records of one that measured."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from records import database, measure_records, targets, tasks
from records.logs import imported
from tests.records import make
from tuner.compile import absent_gpus
from tuner.engines.base import TargetInfo

SPEC = '{"arch":"sm_90","kind":"cuda"}'
VERSIONS = {"tvm": "0.27", "llvm": 22}
GPU = {"name": "NVIDIA H200", "capability": "9.0", **VERSIONS}
ABSENT = TargetInfo(SPEC, "cuda", {"name": "sm_90", **VERSIONS})


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A transaction on an empty database."""
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    with database.sessions(engine)() as opened:
        yield opened
    engine.dispose()


def own_tasks(session: Session, target: TargetInfo = ABSENT, n: int = 2) -> list[int]:
    """Return the tasks of workloads on the target of a build."""
    return [task_of(session, number, dict(target.device)) for number in range(n)]


def task_of(session: Session, number: int, device: dict[str, Any], spec: str = SPEC) -> int:
    """Return the task of a workload on a device."""
    workload = tasks.ensure_workload(session, make.workload(f"w{number}"))
    target = targets.ensure_target(session, spec, device)
    return tasks.ensure_task(session, workload.id, target.id).id


def measure(session: Session, device: dict[str, Any], *secs: float, spec: str = SPEC) -> None:
    """Store a record of each workload on a device."""
    for number, each in enumerate(secs):
        record = make.timed(task_of(session, number, device, spec), f"t{each}", each)
        measure_records.add_records(session, [record])


def latencies(session: Session, target: TargetInfo = ABSENT) -> list[float]:
    """Return the latencies of the records that a build uses."""
    records = absent_gpus.best_records(session, target, own_tasks(session, target))
    return [record.latency for _, record in sorted(records.items())]


def test_records_are_of_the_gpu_with_most_of_the_network(session: Session) -> None:
    """A faster one that measured less is not mixed in."""
    measure(session, {**GPU, "name": "NVIDIA H100"}, 1e-6)
    assert latencies(session) == [1e-6]

    measure(session, GPU, 3e-6, 4e-6)
    assert latencies(session) == [3e-6, 4e-6]


@pytest.mark.parametrize(
    ("device", "spec"),
    [
        ({**GPU, "tvm": "0.28"}, SPEC),
        (GPU, SPEC.replace("90", "80")),
        (imported.claimed_device(GPU), SPEC),
        (dict(ABSENT.device), SPEC),
    ],
)
def test_other_code_and_claims_are_left_out(
    session: Session, device: dict[str, Any], spec: str
) -> None:
    """Another version or target is other code, and claims may be made up."""
    measure(session, device, 1e-6, 1e-6, spec=spec)

    assert latencies(session) == []


def test_a_gpu_that_is_there_uses_its_own(session: Session) -> None:
    """Its records are those that its own trials made."""
    measure(session, {**GPU, "name": "NVIDIA H100"}, 1e-6, 1e-6)

    assert latencies(session, TargetInfo(SPEC, "cuda", GPU)) == []

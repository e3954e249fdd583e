"""Rows and requests for the tests of the API."""

from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from records import measure_records, networks, picks, tasks
from records.models import Job
from records.service import builds, submissions, workers
from records.service.submissions import Submission
from tests.records import make as rows
from tests.tuner.networks.models import relu_model

ONNX = relu_model(1, 4).SerializeToString()


def submission(name: str = "s0", **changes: Any) -> Submission:
    """Return a submission of a hundred trials on one network."""
    fields: dict[str, Any] = {
        "request": {"models": [{"reference": "zoo:mlp"}]},
        "objective": "weighted_sum",
        "seed": 0,
        "budget_trials": 100,
        "budget_secs": None,
        "priority": 0,
        "name": name,
    }
    return Submission(submission=name, **fields | changes)


def job(session: Session, name: str = "s0", **changes: Any) -> Job:
    """Store a queued job of the service."""
    return submissions.submit(session, submission(name, **changes))[0]


def tuned(session: Session, name: str = "s0", n_trials: int = 4, **changes: Any) -> int:
    """Store a running job with two tasks and some trials of the first; return its id."""
    job_id = job(session, name, **changes).id
    target_id = rows.target(session)
    network_id = rows.network(session, f"network of {name}")
    weighted = [(rows.workload(f"{name}-w{i}"), i + 1) for i in range(2)]
    networks.record_extraction(session, network_id, target_id, weighted, 3)
    submissions.assign(session, job_id, network_id, target_id, {})
    task_id = tasks.weighted_tasks(session, network_id, target_id)[0].task_id
    pick = rows.pick(session, job_id, task_id, n_trials, {"reason": "warm-up"})
    for number in range(n_trials - 1):
        secs = 0.01 / (number + 1)
        measure_records.add_record(
            session, rows.timed(task_id, f"{name}-{number}", secs, pick_id=pick.id)
        )
    measure_records.add_record(session, rows.failed(task_id, f"{name}-broken", pick_id=pick.id))
    ending = picks.RoundEnd(pick.id, job_id, 1.0, 0.01, spent_trials=n_trials, job_trials=n_trials)
    picks.end_picks(session, [ending])
    return job_id


def worker(session: Session, **changes: Any) -> None:
    """Report a worker that measures."""
    report = workers.WorkerReport(
        name="here:1", host="here", pid=1, role="active", activity="measuring", **changes
    )
    workers.report(session, report)


def built(session: Session, job_id: int, archives: Path, content: bytes, sha256: str) -> int:
    """Store a finished build with its archive; return its id."""
    archives.mkdir(parents=True, exist_ok=True)
    (archives / "key.tar.gz").write_bytes(content)
    build = builds.request_build(session, job_id)
    builds.set_build(
        session,
        build.id,
        "done",
        library_key="key",
        archive="key.tar.gz",
        sha256=sha256,
        n_bytes=len(content),
    )
    return build.id

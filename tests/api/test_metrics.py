"""Metrics for Prometheus agree with the database."""

import time
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api import metrics
from api.settings import ApiSettings
from records import jobs, measure_records, migrations, tasks
from records.models import ERROR_KINDS, now
from records.service import builds, leases
from records.tuning import events
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving
from tests.records import make as rows

_PREFIX = "subgraph_tuner_"


def samples(served: Served) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return every sample by its name without the prefix, and its sorted label values."""
    answer = served.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (
            sample.name.removeprefix(_PREFIX),
            tuple(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@on_each_database
def test_every_family_is_there_with_its_numbers(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tuned job, a queued job and a busy worker appear in all families."""
    monkeypatch.setattr(metrics, "_CACHE_SECS", 0.0)
    with served.sessions.begin() as session:
        job_id = make.tuned(session, n_trials=4)
        events.set_status(session, job_id, phase="resting", spent_trials=4)
        second = tasks.tasks_of_job(session, jobs.get_job(session, job_id))[1].task_id
        measure_records.add_record(session, rows.timed(second, "only", 0.02))
        jobs.set_state(session, job_id, "done")
        builds.request_build(session, job_id)
        make.job(session, "waiting")
        make.worker(session, busy_secs=12.0, busy_share=0.75)
    at = f"/api/v1/jobs/{job_id}"
    for _ in range(3):
        served.client.get(at)
    served.client.get("/api/v1/jobs/777")

    with served.client.stream("GET", f"{at}/events") as stream:
        # Kept in a variable, because the connection closes with the iterator.
        lines = stream.iter_lines()
        next(lines)
        metrics_after = samples(served)

    worker = ("active", "here:1")
    failed = dict.fromkeys(ERROR_KINDS, 0.0) | {"run_error": 1.0}
    states = dict.fromkeys(metrics.STATES, 0.0) | {"done": 1.0, "queued": 1.0}
    expected: dict[tuple[str, tuple[str, ...]], Any] = {
        ("database_up", ()): 1.0,
        ("database_bytes", ()): pytest.approx(2**23, abs=2**23),
        ("disk_free_bytes", ("data directory",)): pytest.approx(2**45, abs=2**45),
        ("disk_size_bytes", ("data directory",)): pytest.approx(2**45, abs=2**45),
        ("build_info", (migrations.newest(), version("subgraph-tuner"))): 1.0,
        ("last_trial_timestamp_seconds", ()): pytest.approx(time.time(), abs=60.0),
        ("trials_total", ("ok",)): 3.0,
        **{("trials_total", (kind,)): n for kind, n in failed.items()},
        **{("jobs", (state,)): n for state, n in states.items()},
        ("queue", ("jobs",)): 1.0,
        ("queue", ("builds",)): 1.0,
        ("queue_age_seconds", ("jobs",)): pytest.approx(15.0, abs=15.0),
        ("queue_age_seconds", ("builds",)): pytest.approx(15.0, abs=15.0),
        ("job_latency_seconds", (str(job_id), "done")): pytest.approx(0.01 / 3 + 2 * 0.02),
        ("worker_up", worker): 1.0,
        ("device_busy_share", worker): 0.75,
        ("device_busy_seconds_total", worker): 12.0,
        ("event_readers", ()): 1.0,
        ("request_seconds_count", ("GET", "/api/v1/jobs/{job_id}", "200")): 3.0,
        ("request_seconds_count", ("GET", "/api/v1/jobs/{job_id}", "404")): 1.0,
    }
    assert {key: metrics_after.get(key) for key in expected} == expected
    families = {name for name, _ in expected} | {"request_seconds_bucket", "request_seconds_sum"}
    assert {name for name, _ in metrics_after} == families


def test_a_failed_database_is_a_metric(quick: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics from the database are left out instead of being repeated."""
    monkeypatch.setattr(metrics, "_CACHE_SECS", 0.0)
    with serving(quick) as served:
        before = samples(served)
        with served.sessions.begin() as session:
            session.connection().exec_driver_sql("ALTER TABLE job RENAME TO gone")
        after = samples(served)

    assert (before["database_up", ()], after["database_up", ()]) == (1.0, 0.0)
    assert ("queue", ("jobs",)) in before
    assert {name for name, _ in after if not name.startswith("request_seconds")} == {
        "build_info",
        "database_up",
        "disk_free_bytes",
        "disk_size_bytes",
        "event_readers",
    }


def test_a_coordinator_that_hangs_is_seen(quick: ApiSettings) -> None:
    """The age of the lease, and of the last progress of the process that holds it."""
    with serving(quick) as served:
        assert served.client.get("/readyz").json()["coordinator_progress_age_secs"] is None
        with served.sessions.begin() as session:
            assert leases.acquire(session, leases.COORDINATOR, "here:1", 10.0) is not None
            device = {"sandbox": "partial: no Landlock"}
            make.worker(session, progress=now() - timedelta(seconds=40), device=device)
        seen = samples(served)
        ready = served.client.get("/readyz").json()

    assert ready["status"] == "ready"
    assert ready["worker_sandbox"] == "partial: no Landlock"
    assert 40.0 <= ready["coordinator_progress_age_secs"] < 100.0
    assert 40.0 <= seen["worker_progress_age_seconds", ("active", "here:1")] < 100.0
    assert 0.0 <= seen["coordinator_lease_age_seconds", ()] < 60.0

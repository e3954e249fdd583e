"""Benchmarks of the service work at sizes that take seconds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from benchmarks._filling import TRIALS_PER_PICK, Filling, open_filled, workload_hash
from benchmarks._latencies import percentile
from records import database, measure_records
from records.models import MeasureRecord, Pick
from tuner.queries import jobs as job_queries
from tuner.queries import records as record_queries

_ROOT = Path(__file__).parents[2]
_N_RECORDS = 3_200
_N_TASKS = 20


def test_generated_records_agree_with_their_sums(tmp_path: Path) -> None:
    """A generated job can be shown, and its table agrees with its records."""
    filling = Filling(_N_RECORDS, _N_TASKS, tasks_per_job=_N_TASKS, events=True)
    engine = open_filled(f"sqlite:///{tmp_path}/records.db", filling)
    with database.sessions(engine, read_only=True)() as session:
        n_failed = session.scalar(select(func.count(MeasureRecord.error_kind)))
        (best,) = record_queries.read_bests(session, workload=workload_hash(3), target_id=1)
        fastest = session.scalar(
            select(func.min(MeasureRecord.latency)).where(MeasureRecord.task_id == 4)
        )
        view = job_queries.read_job(session, 1)
        own = measure_records.own_trials(session, 1)
        n_picks = session.scalar(select(func.count(Pick.id)))
    engine.dispose()

    assert view.job.trials == sum(own.values()) == _N_RECORDS
    assert sum(task.failed for task in view.tasks) == n_failed
    assert (best.task, best.latency_secs) == (4, fastest)
    assert n_picks == filling.n_picks == _N_RECORDS // TRIALS_PER_PICK


def test_a_filled_database_is_not_filled_again(tmp_path: Path) -> None:
    """A database of another size is refused, because its results would not compare."""
    url = f"sqlite:///{tmp_path}/records.db"
    for _ in range(2):
        open_filled(url, Filling(640, 10, tasks_per_job=10)).dispose()

    with pytest.raises(ValueError, match="holds 640 records, not 1280"):
        open_filled(url, Filling(1_280, 10, tasks_per_job=10))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 2), (0.99, 4), (1.0, 4)])
def test_a_percentile_is_a_sample(share: float, expected: int) -> None:
    """It is the nearest rank, never an interpolated value."""
    assert percentile([3, 1, 4, 2], share) == expected


@pytest.mark.slow("minutes: every benchmark in a small size")
@pytest.mark.parametrize(
    "words",
    [
        "build_cache --models zoo:mlp",
        "runtime_cache --batch 4 --samples 8 --epochs 1 --quiet",
        "cache_store --entries 2000 --lookups 200 --processes 8 --make-secs 1",
        "lookup --records 64000 --tasks 200 --lookups 20",
        "job_page --records 64000 --requests 3 --databases sqlite",
        "event_readers --readers 20 --events 20",
        "service_load --clients 5 --window 5 --pairs 1 --settle 1 --route-clients 2 --route-secs 1",
    ],
)
def test_a_benchmark_prints_one_line_a_database(words: str) -> None:
    """The line is JSON and has the goals."""
    name, *options = words.split()

    for line in _run(name, *options):
        assert line["benchmark"] == name
        assert line["reached"] in (True, False)


def _run(name: str, *options: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=300,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]

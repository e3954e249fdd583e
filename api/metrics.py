"""What Prometheus is told: requests as this process counts them, the rest out of the database."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from records import workers
from records.jobs import count_by_state
from records.models import ERROR_KINDS, Job, JobFailure, Pick
from records.service_models import Build
from tuner.queries.latencies import network_latencies

_KEEP_SECS = 5.0
_N_JOBS = 20
_STATES = ("queued", "running", "paused", "done", "failed", "cancelled")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics:
    """The registry of one application."""

    def __init__(self, readers: sessionmaker[Session]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_FromDatabase(readers))
        self._requests = Histogram(
            "subgraph_tuner_request_seconds",
            "How long requests took; event streams count for as long as they were open.",
            ("method", "route", "status"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.event_readers = Gauge(
            "subgraph_tuner_event_readers", "Open event streams.", registry=self._registry
        )

    def observe(self, method: str, route: str, status: int, secs: float) -> None:
        """Count a request."""
        method = method if method in ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH") else "other"
        self._requests.labels(method, route, status).observe(secs)

    def render(self) -> bytes:
        """Return everything in the text format; reads the database, at most every few seconds."""
        return generate_latest(self._registry)


@dataclass(eq=False)
class _FromDatabase(Collector):
    """Reads the database when it is asked, and repeats itself for a few seconds."""

    readers: sessionmaker[Session]
    _kept: list[Metric] = field(default_factory=list)
    _at: float = -_KEEP_SECS

    def describe(self) -> list[Metric]:
        """Name nothing in advance: that would read the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield what the database says; that it says nothing, where it does not answer."""
        if time.monotonic() - self._at >= _KEEP_SECS:
            self._kept, self._at = self._read(), time.monotonic()
        yield from self._kept

    def _read(self) -> list[Metric]:
        up = GaugeMetricFamily("subgraph_tuner_database_up", "Whether the database answers.")
        try:
            with self.readers() as session:
                found = [*_trials(session), *_jobs(session), *_workers(session)]
        except SQLAlchemyError:
            found = []
        up.add_metric([], float(bool(found)))
        return [up, *found]


def _trials(session: Session) -> list[Metric]:
    trials = CounterMetricFamily(
        "subgraph_tuner_trials", "Trials that jobs paid for.", labels=["outcome"]
    )
    measured, failed = session.execute(
        select(func.sum(Pick.n_measured), func.sum(Pick.n_failed))
    ).one()
    trials.add_metric(["ok"], (measured or 0) - (failed or 0))
    counted = select(JobFailure.error_kind, func.sum(JobFailure.n_trials))
    rows = session.execute(counted.group_by(JobFailure.error_kind))
    kinds = {kind: n_trials for kind, n_trials in rows}  # noqa: C416  rows are not pairs to mypy
    for kind in ERROR_KINDS:
        trials.add_metric([kind], kinds.get(kind, 0))
    return [trials]


def _jobs(session: Session) -> list[Metric]:
    jobs = GaugeMetricFamily("subgraph_tuner_jobs", "Jobs by state.", labels=["state"])
    states = count_by_state(session)
    for state in _STATES:
        jobs.add_metric([state], states.get(state, 0))
    queue = GaugeMetricFamily("subgraph_tuner_queue", "What waits for a worker.", labels=["kind"])
    builds = select(func.count()).select_from(Build).where(Build.state == "queued")
    queue.add_metric(["jobs"], states.get("queued", 0))
    queue.add_metric(["builds"], session.scalar(builds) or 0)
    latency = GaugeMetricFamily(
        "subgraph_tuner_job_latency_seconds",
        "Latency of the network by its best records, for the jobs that changed last.",
        labels=["job", "state"],
    )
    for job_id, state, secs in _latencies(session):
        latency.add_metric([str(job_id), state], secs)
    return [jobs, queue, latency]


def _latencies(session: Session) -> Iterator[tuple[int, str, float]]:
    recent = select(Job.id, Job.state).where(~Job.hidden).order_by(Job.updated.desc())
    jobs = session.execute(recent.limit(_N_JOBS)).all()
    latencies = network_latencies(session, [job.id for job in jobs])
    for job_id, state in jobs:
        if job_id in latencies:
            yield job_id, state, latencies[job_id]


def _workers(session: Session) -> list[Metric]:
    labels = ["worker", "role"]
    up = GaugeMetricFamily("subgraph_tuner_worker_up", "Whether it was heard of.", labels=labels)
    share = GaugeMetricFamily(
        "subgraph_tuner_device_busy_share",
        "Part of the last minute, from 0 to 1, in which it searched, trained, built or measured.",
        labels=labels,
    )
    busy = CounterMetricFamily(
        "subgraph_tuner_device_busy_seconds",
        "Seconds in which it searched, trained, built or measured.",
        labels=labels,
    )
    for worker in workers.list_workers(session, lately=10 * workers.SILENT):
        named = [worker.name, worker.role]
        up.add_metric(named, float(workers.is_alive(worker)))
        share.add_metric(named, worker.busy_share)
        busy.add_metric(named, worker.busy_secs)
    return [up, share, busy]

"""Metrics for Prometheus: requests of this process, and sums over the database."""

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from records import migrations
from records.jobs import count_by_state
from records.models import JobState
from records.service import leases, workers
from tuner.files.disk_floor import disks_of
from tuner.queries import metrics

_CACHE_SECS = 5.0
_N_JOBS = 20
STATES: tuple[str, ...] = get_args(JobState)
_METHODS = ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics:
    """The registry of one application."""

    def __init__(self, readers: sessionmaker[Session], folders: Mapping[str, Path]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_DatabaseCollector(readers))
        self._registry.register(_DiskCollector(folders))
        Info(
            "subgraph_tuner_build",
            "Version of the program and of its schema.",
            registry=self._registry,
        ).info({"version": version("subgraph-tuner"), "schema": migrations.newest()})
        self._requests = Histogram(
            "subgraph_tuner_request_seconds",
            "Duration of requests, without the time for which they waited for news.",
            ("method", "route", "status"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.event_readers = Gauge(
            "subgraph_tuner_event_readers", "Open event streams.", registry=self._registry
        )

    def observe(self, method: str, route: str, status: int, secs: float) -> None:
        """Count a request."""
        label = method if method in _METHODS else "other"
        self._requests.labels(label, route, status).observe(secs)

    def render(self) -> bytes:
        """Return everything in the text format; reads the database every few seconds at most."""
        return generate_latest(self._registry)


@dataclass(eq=False)
class _DiskCollector(Collector):
    """Reads the space on the disks of some folders, of each disk once."""

    folders: Mapping[str, Path]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; none while a disk does not answer."""
        text = "by the first of the service's folders on it."
        free = GaugeMetricFamily(
            "subgraph_tuner_disk_free_bytes", f"Free bytes of a disk, {text}", labels=["folder"]
        )
        total = GaugeMetricFamily(
            "subgraph_tuner_disk_size_bytes", f"Bytes of a disk, {text}", labels=["folder"]
        )
        try:
            usages = {disk.name: shutil.disk_usage(disk.folder) for disk in disks_of(self.folders)}
        except OSError:
            return
        for name, usage in usages.items():
            free.add_metric([name], usage.free)
            total.add_metric([name], usage.total)
        yield from (free, total)


@dataclass(eq=False)
class _DatabaseCollector(Collector):
    """Reads the database on request, and repeats the answer for a few seconds."""

    readers: sessionmaker[Session]
    _cached: list[Metric] = field(default_factory=list)
    _read_at: float = -_CACHE_SECS
    _trials: metrics.TrialCounter = field(default_factory=metrics.TrialCounter)

    def describe(self) -> list[Metric]:
        """Declare nothing in advance, which would read the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; of a database that does not answer, only that it is down."""
        if time.monotonic() - self._read_at >= _CACHE_SECS:
            self._cached, self._read_at = self._read(), time.monotonic()
        yield from self._cached

    def _read(self) -> list[Metric]:
        up = GaugeMetricFamily("subgraph_tuner_database_up", "Whether the database answers.")
        try:
            with self.readers() as session:
                n_bytes = metrics.database_bytes(session)
                families = [
                    *_trials(session, self._trials),
                    *_jobs(session),
                    *_workers(session),
                    GaugeMetricFamily(
                        "subgraph_tuner_database_bytes", "Size of the database.", n_bytes
                    ),
                ]
        except SQLAlchemyError:
            families = []
        up.add_metric([], float(bool(families)))
        return [up, *families]


def _trials(session: Session, counter: metrics.TrialCounter) -> list[Metric]:
    trials = CounterMetricFamily(
        "subgraph_tuner_trials", "Trials that jobs paid for.", labels=["outcome"]
    )
    for outcome, n_trials in counter.count(session).items():
        trials.add_metric([outcome], n_trials)
    newest = metrics.last_trial(session)
    last = GaugeMetricFamily(
        "subgraph_tuner_last_trial_timestamp_seconds",
        "Unix time of the newest trial; 0 without one.",
        0.0 if newest is None else newest.timestamp(),
    )
    return [trials, last]


def _jobs(session: Session) -> list[Metric]:
    jobs = GaugeMetricFamily("subgraph_tuner_jobs", "Jobs by state.", labels=["state"])
    states = count_by_state(session)
    for state in STATES:
        jobs.add_metric([state], states.get(state, 0))
    queue = GaugeMetricFamily(
        "subgraph_tuner_queue", "Jobs and builds that wait for a worker.", labels=["kind"]
    )
    queue.add_metric(["jobs"], states.get("queued", 0))
    queue.add_metric(["builds"], metrics.count_queued_builds(session))
    age = GaugeMetricFamily(
        "subgraph_tuner_queue_age_seconds",
        "Time for which the oldest of them waits; 0 without one.",
        labels=["kind"],
    )
    for kind, secs in metrics.queue_ages(session).items():
        age.add_metric([kind], secs)
    latency = GaugeMetricFamily(
        "subgraph_tuner_job_latency_seconds",
        "Latency of the network by its best records, for the jobs that changed last.",
        labels=["job", "state"],
    )
    for job in metrics.recent_latencies(session, _N_JOBS):
        latency.add_metric([str(job.job_id), job.state], job.secs)
    return [jobs, queue, age, latency]


def _workers(session: Session) -> list[Metric]:
    labels = ["worker", "role"]
    up = GaugeMetricFamily(
        "subgraph_tuner_worker_up", "Whether the process reported recently.", labels=labels
    )
    share = GaugeMetricFamily(
        "subgraph_tuner_device_busy_share",
        "Part of the last minute, from 0 to 1, spent searching, training, building or measuring.",
        labels=labels,
    )
    busy = CounterMetricFamily(
        "subgraph_tuner_device_busy_seconds",
        "Seconds spent searching, training, building or measuring.",
        labels=labels,
    )
    progress = GaugeMetricFamily(
        "subgraph_tuner_worker_progress_age_seconds",
        "Seconds since the main loop of the process was seen to run.",
        labels=labels,
    )
    for worker in workers.list_workers(session, seen_within=10 * workers.OFFLINE_AFTER):
        values = [worker.name, worker.role]
        if (age := workers.progress_age_secs(worker)) is not None and worker.stopped is None:
            progress.add_metric(values, age)
        up.add_metric(values, float(workers.is_alive(worker)))
        share.add_metric(values, worker.busy_share)
        busy.add_metric(values, worker.busy_secs)
    return [up, share, busy, progress, *_lease(session)]


def _lease(session: Session) -> list[Metric]:
    age = GaugeMetricFamily(
        "subgraph_tuner_coordinator_lease_age_seconds",
        "Seconds since the lease of the coordinator was renewed; absent if no process holds it.",
    )
    secs = leases.age_secs(session, leases.COORDINATOR, leases.LEASE_SECS)
    if secs is not None:
        age.add_metric([], secs)
    return [age]

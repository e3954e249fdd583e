"""Worker processes of benchmarks, which run their own code on files anywhere."""

from dataclasses import replace

from tuner.settings import Settings
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool


def open_worker(settings: Settings) -> Pool:
    """Start a process as :func:`tuner.workers.factory.fresh_worker` does, but not confined."""
    return fresh_worker(replace(settings, worker_sandbox="off"), "network")

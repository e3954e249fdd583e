"""The real engine, whose search is real and whose latencies follow from the traces alone.

Nothing is compiled or run, so that two jobs with one seed have the same records.
"""

# mypy: disable-error-code="no-redef"

import hashlib
import io
import time
from pathlib import Path

import numpy as np

from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    ReferenceRequest,
    RunRequest,
    RunResult,
)
from tuner.engines.relax.worker import *  # noqa: F403  but for what is defined here

NAME = "tests.engines.replayed"
_TRACE = "trace.txt"
# It takes seconds, and tells tests nothing.
del measure_peaks  # noqa: F821


def build(request: BuildRequest) -> BuildResult:
    """Keep the trace; builds take different times, and end in another order than they begin."""
    time.sleep(0.1 * _share(request.trace))
    folder = Path(request.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _TRACE).write_text(request.trace)
    return BuildResult(str(folder))


def reference(_request: ReferenceRequest) -> bytes:
    """Return an output that no run is compared with."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(1))
    return stream.getvalue()


def run(request: RunRequest) -> RunResult:
    """Return the latency of a trace; every eighth fails."""
    share = _share((Path(request.artifact) / _TRACE).read_text())
    if share > 0.875:
        return RunResult(error_kind="run_error", error_text="injected")
    return RunResult((1e-4 * (1.0 + share),) * 3, max_error=0.0)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Repeat the samples of a run."""
    results = [run(request) for request in requests]
    return [RunResult((result.run_secs or ()) * n_turns) for result in results]


def _share(trace: str) -> float:
    return int(hashlib.sha256(trace.encode()).hexdigest()[:12], 16) / 16**12

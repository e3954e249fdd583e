"""The engine relay, with the faults that a file asks for; see :mod:`tests.engines.faults`.

It runs in the environment of that engine: ``relay:tests.engines.faulty_relay``.
"""

# mypy: disable-error-code="no-redef"

from pathlib import Path

from tests.engines.faults import due, strike
from tuner.engines.base import BuildRequest, BuildResult, RunRequest, RunResult
from tuner.engines.relay import worker as real
from tuner.engines.relay.worker import *  # noqa: F403  but for what is defined here

_TRACE = "trace.txt"
# It takes seconds, and tells tests nothing.
del measure_peaks  # noqa: F821


def build(request: BuildRequest) -> BuildResult:
    """Build, or fail to; an unscheduled build is never hit."""
    if request.trace:
        strike(due("build", request.trace))
    result = real.build(request)
    if result.artifact:
        (Path(result.artifact) / _TRACE).write_text(request.trace)
    return result


def run(request: RunRequest) -> RunResult:
    """Run, or fail to."""
    strike(due("run", (Path(request.artifact) / _TRACE).read_text()))
    return real.run(request)

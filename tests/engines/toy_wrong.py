"""The toy engine, some of whose programs compute something else or lose their worker.

``TOY_WRONG`` and ``TOY_LOST`` in the coordinator's environment name tasks, as ``heavy,light``.
"""

import json
import os
import signal
from pathlib import Path

from tests.engines import toy
from tests.engines.toy import (
    build,
    compile_subgraph,
    describe_target,
    extract,
    link_network,
    profile,
    propose,
    reference,
    run_interleaved,
    run_network,
)
from tuner.engines.base import RunRequest, RunResult

__all__ = [
    "build",
    "compile_subgraph",
    "describe_target",
    "extract",
    "link_network",
    "profile",
    "propose",
    "reference",
    "run",
    "run_interleaved",
    "run_network",
]

NAME = "tests.engines.toy_wrong"


def run(request: RunRequest) -> RunResult:
    """Run as the toy does, unless the task is one of those."""
    name = json.loads((Path(request.artifact) / "kernel.json").read_text())["name"]
    if name in os.environ.get("TOY_LOST", "").split(","):
        os.kill(os.getpid(), signal.SIGKILL)
    if name in os.environ.get("TOY_WRONG", "").split(","):
        return RunResult(error_kind="wrong_result", error_text="off by 1", max_error=1.0)
    return toy.run(request)

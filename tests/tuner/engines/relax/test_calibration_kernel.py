"""The calibration kernel is the same everywhere, and is built without a trace."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.gpu_compilers import needs_nvrtc
from tuner.engines.base import BuildRequest, EvaluatorSettings, RunRequest, TargetInfo
from tuner.engines.relax import worker

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]

_IN_ANOTHER_PROCESS = """
import sys
from tuner.engines.relax import worker
sys.stdout.buffer.write(worker.calibration_kernel(sys.argv[1]))
"""


def test_it_runs_on_this_cpu(target: TargetInfo, tmp_path: Path) -> None:
    """It runs long enough that the resolution of the clock does not matter."""
    ir = worker.calibration_kernel(target.spec)
    built = worker.build(BuildRequest(ir, target.spec, "", str(tmp_path)))
    evaluator = EvaluatorSettings(repeat=10, min_repeat_ms=0)

    result = worker.run(RunRequest(built.artifact, target.spec, (), evaluator, math.inf))

    assert result.run_secs is not None
    assert len(result.run_secs) == 10
    assert min(result.run_secs) > 1e-3


def test_two_processes_have_the_same_one(target: TargetInfo) -> None:
    """The bytes are equal, because calibrations are compared by their hash."""
    command = [sys.executable, "-W", "ignore", "-c", _IN_ANOTHER_PROCESS, target.spec]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)

    assert answer.stdout == worker.calibration_kernel(target.spec)


@needs_nvrtc
def test_it_is_built_for_gpus_without_one(tmp_path: Path) -> None:
    """A GPU gets the default schedule."""
    target = worker.describe_target("cuda:sm_90")
    ir = worker.calibration_kernel(target.spec)

    built = worker.build(BuildRequest(ir, target.spec, "", str(tmp_path)))

    assert built.error_text == ""

"""The calibration kernel is built without a trace."""

import math
from pathlib import Path

from tests.gpu_compilers import needs_nvrtc
from tuner.engines.base import BuildRequest, EvaluatorSettings, RunRequest, TargetInfo
from tuner.engines.relax import worker


def test_it_runs_on_this_cpu(target: TargetInfo, tmp_path: Path) -> None:
    """It runs long enough that the resolution of the clock does not matter."""
    ir = worker.calibration_kernel(target.spec)
    built = worker.build(BuildRequest(ir, target.spec, "", str(tmp_path)))
    evaluator = EvaluatorSettings(repeat=3, min_repeat_ms=0)

    result = worker.run(RunRequest(built.artifact, target.spec, (), evaluator, math.inf))

    assert result.run_secs is not None
    assert len(result.run_secs) == 3
    assert min(result.run_secs) > 1e-3


@needs_nvrtc
def test_it_is_built_for_gpus_without_one(tmp_path: Path) -> None:
    """A GPU gets the default schedule."""
    target = worker.describe_target("cuda:sm_90")
    ir = worker.calibration_kernel(target.spec)

    built = worker.build(BuildRequest(ir, target.spec, "", str(tmp_path)))

    assert built.error_text == ""

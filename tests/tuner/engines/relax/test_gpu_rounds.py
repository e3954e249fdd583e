"""Every candidate of a round for ResNet-18 compiles to a binary, for each architecture."""

from collections import Counter
from pathlib import Path

import pytest

from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import networks
from tuner import cost_models
from tuner.engines.base import BuildRequest, ExtractedTask, SearchRequest, TargetInfo
from tuner.engines.relax import worker

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
    needs_nvrtc,
]


def build_round(task: ExtractedTask, target: TargetInfo, n: int, folder: Path) -> Counter[str]:
    """Build a round of candidates, and count the results by the first line of their errors."""
    model = cost_models.create("random", 0).save()
    request = SearchRequest(task.ir, target.spec, (), model, n, 3 * n, 1, seed=1)
    ended: Counter[str] = Counter()
    for position, candidate in enumerate(worker.propose(request)):
        out = folder / f"{task.workload}-{position}"
        built = worker.build(BuildRequest(task.ir, target.spec, candidate.trace, str(out)))
        ended[built.error_text.partition("\n")[0] or "built"] += 1
    return ended


@pytest.mark.slow("half a minute of NVRTC")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_rounds_of_three_tasks_are_binaries(arch: str, tmp_path: Path) -> None:
    """The first, the last and the heaviest task are compiled at a small size."""
    target = worker.describe_target(f"cuda:{arch}")
    tasks = worker.extract(networks.load("zoo:resnet-18?image=32", 1), target.spec).tasks

    for task in (tasks[0], tasks[-1], max(tasks, key=lambda each: each.flop)):
        ended = build_round(task, target, 4, tmp_path)
        assert ended["built"] >= 0.9 * ended.total() > 0, (task.name, ended)


@pytest.mark.slow("an hour of NVRTC")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_round_of_every_task_is_binaries(arch: str, tmp_path: Path) -> None:
    """At most two in a hundred of 64 candidates per task fail for reasons TVM cannot check."""
    target = worker.describe_target(f"cuda:{arch}")
    ended: Counter[str] = Counter()
    for task in worker.extract(networks.load("zoo:resnet-18", 1), target.spec).tasks:
        results = build_round(task, target, 64, tmp_path)
        assert results["built"], task.name
        ended += results

    print(dict(ended))
    assert ended["built"] >= 0.98 * ended.total(), ended

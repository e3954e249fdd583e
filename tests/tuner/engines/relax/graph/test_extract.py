"""Networks are split into weighted tasks whose hashes depend on the subgraph only."""

import tvm

from tests.tuner.engines.relax.networks import load
from tuner.engines.base import TargetInfo
from tuner.engines.relax import worker
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.targets import make_target


def test_tasks_do_not_depend_on_the_weights(target: TargetInfo) -> None:
    """Other weights give the same tasks."""
    one, two = (worker.extract(load(f"zoo:mlp?seed={seed}"), target.spec).tasks for seed in (1, 2))

    assert one == two


def test_workload_survives_its_bytes(target: TargetInfo) -> None:
    """The pinned ffi serialises a PrimFunc (0.1.15 crashes in save_json) without a change."""
    network = lower(load("zoo:mlp"), make_target(target.spec))
    for subgraph in find_subgraphs(network):
        blob = workloads.dump(subgraph.module)
        again = workloads.load(blob)

        assert workloads.name_of(blob) == subgraph.workload
        assert workloads.dump(again) == blob
        tvm.ir.assert_structural_equal(again, subgraph.module)
        assert workloads.dump(again) == blob


def test_names_describe_tasks(target: TargetInfo) -> None:
    """Names have the operators and the output shape, without the counters of a network."""
    names = [task.name for task in worker.extract(load("zoo:mlp"), target.spec).tasks]

    assert names == [
        "matmul_add_relu[1x128]",
        "matmul_add_relu[1x64]",
        "matmul_add[1x10]",
        "softmax[1x10]",
    ]


def test_convolutions_are_channels_last(target: TargetInfo) -> None:
    """Every kernel that the network calls belongs to exactly one task."""
    extraction = worker.extract(load("zoo:squeezenet_v1.1?layout=NCHW"), target.spec)
    assert sum(task.weight for task in extraction.tasks) == extraction.n_kernel_calls
    assert len({task.workload for task in extraction.tasks}) == len(extraction.tasks)
    assert all(task.flop >= 0 and task.weight >= 1 for task in extraction.tasks)
    # SqueezeNet 1.1 has 0.35 G multiply-adds.
    assert 6.9e8 < sum(task.flop * task.weight for task in extraction.tasks) < 8e8

    convolutions = [task.name for task in extraction.tasks if "conv2d" in task.name]
    assert convolutions
    assert "conv2d_add_relu[1x1x1x1000]" not in convolutions
    assert any(name.endswith("x64]") for name in convolutions)

"""Weights are packed where the packed form holds all their elements, and nowhere else."""

import numpy as np
import onnx
from onnx import helper

from tests.tuner.engines.relax.networks import lower_proto
from tests.tuner.networks.models import Array, model
from tuner.engines.base import TargetInfo
from tuner.engines.relax.codegen.build import split_packing
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.ir import traces
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.target.targets import make_target


def n_packed(node: onnx.NodeProto, weight: Array, target: TargetInfo) -> int:
    """Count the packed arguments of the kernel of a node, scheduled by rule."""
    made = model([node], {"data": (1, 128)}, {"y": (1, 128)}, {"weight": weight})
    (subgraph,) = find_subgraphs(lower_proto(made, target.spec)[0])
    device = make_target(target.spec)
    trace = ranking.compute_trace(subgraph.module, device)
    assert trace
    return len(split_packing(traces.schedule_module(subgraph.module, trace, device)["main"])[1])


def test_a_weight_that_is_read_once_is_packed(target: TargetInfo) -> None:
    """The weight of a product moves to the layout of its tiles."""
    node = helper.make_node("MatMul", ["data", "weight"], ["y"])
    assert n_packed(node, np.ones((128, 128), np.float32), target) == 1


def test_a_weight_that_is_read_at_two_places_at_once_is_not(target: TargetInfo) -> None:
    """The indices of both axes are in one constant, of which TVM would keep one half."""
    rows = np.stack([np.zeros(128, np.int64), np.arange(128)], -1)[None]
    node = helper.make_node("GatherND", ["data", "weight"], ["y"])
    assert n_packed(node, rows, target) == 0

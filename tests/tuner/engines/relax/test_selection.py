"""A network with branches that the data choose is fused as any other."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.tuner.engines.relax.conftest import Save
from tuner.engines.base import TargetInfo
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.target.targets import make_target
from tuner.networks.worker import load_model


def test_what_follows_a_branch_is_part_of_its_kernel(
    save: Save, target: TargetInfo, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both branches, the choice and the activation are one kernel."""
    branches = {
        f"{key}_branch": helper.make_graph(
            [helper.make_node(op, ["data"], ["value"])],
            "branch",
            [],
            [helper.make_tensor_value_info("value", TensorProto.FLOAT, None)],
        )
        for key, op in (("then", "Exp"), ("else", "Neg"))
    }
    nodes = [
        helper.make_node("ReduceMax", ["data"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "limit"], ["taken"]),
        helper.make_node("If", ["taken"], ["value"], **branches),
        helper.make_node("Relu", ["value"], ["y"]),
    ]
    file = save(nodes, (4, 8), {"limit": np.array(1.0, "float32")})
    folder = tmp_path_factory.mktemp("cleaned")
    model = load_model(file.path, {}, None, str(folder)).file

    names = [each.name for each in find_subgraphs(lower(model, make_target(target.spec)))]

    assert len(names) == 2
    assert all(word in names[1] for word in ("exp", "neg", "where", "relu"))

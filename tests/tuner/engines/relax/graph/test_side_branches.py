"""Branches beside a product are part of what follows it, and keep it from no schedule."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import lower_proto, run_module
from tests.tuner.networks.models import run
from tuner.engines.base import TargetInfo
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.target.targets import make_target


def model(branch: str) -> onnx.ModelProto:
    """Return the product of x and a constant, times a branch of z named u."""
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[48,32] x, float[48,64] z, float[1,64] row) => (float[48,64] y)
        <float zero = {{0.0}}>
        {{ p = MatMul(x, w)
           {branch}
           y = Mul(p, u) }}"""
    )
    proto.graph.initializer.append(numpy_helper.from_array(draw(32, 64, seed=3), "w"))
    return proto


@pytest.mark.parametrize(
    "branch",
    [
        "u = Exp(z)",
        "a = Exp(z)  b = Neg(a)  u = Mul(a, b)",
        "c = Greater(z, zero)  u = Where(c, z, zero)",
        "a = Exp(z)  b = Mul(a, p)  u = Add(b, a)",
        "a = Exp(row)  u = Add(a, z)",
    ],
    ids=["exponential", "read twice", "choice", "read with the product", "row"],
)
def test_product_has_a_schedule(branch: str, target: TargetInfo) -> None:
    """The kernel of the product is scheduled by rule, and the network has the right values."""
    proto = model(branch)
    feeds = {"x": draw(48, 32), "z": draw(48, 64, seed=1), "row": draw(1, 64, seed=2)}
    feeds = {each.name: feeds[each.name] for each in proto.graph.input}

    module, file = lower_proto(proto, target.spec)

    (product,) = (each for each in find_subgraphs(module) if "matmul" in each.name)
    assert ranking.compute_trace(product.module, make_target(target.spec))
    (actual,) = run_module(module, file, feeds, target.spec)
    np.testing.assert_allclose(
        actual, run(proto.SerializeToString(), feeds)[0], rtol=1e-5, atol=1e-5
    )

"""Kernels that networks get without a record agree with their workloads, in the interpreter."""

import pytest

from tests.tuner.engines.relax import networks
from tests.tuner.engines.relax.triton.conftest import Verify
from tuner.engines.relax import worker, workloads
from tuner.engines.relax.triton import compiler, variants

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not compiler.is_installed(), reason="the triton extra is not installed"),
]

# Interpreting a larger workload takes seconds.
_MAX_FLOP = 2e6


@pytest.mark.parametrize(
    ("reference", "n_matched"),
    [
        ("zoo:mlp?dtype=float16", 3),
        ("zoo:mobilenet?image=32&dtype=float16", 12),
    ],
)
def test_kernels_of_networks_agree(reference: str, n_matched: int, verify: Verify) -> None:
    """Each product, convolution and softmax has a kernel, and the small ones are run."""
    tasks = worker.extract(
        networks.load(reference, 1), worker.describe_target("cuda:sm_90").spec
    ).tasks
    matched = 0
    for task in tasks:
        function = workloads.load(task.ir)["main"]
        pairs = ((each, each.find(function)) for each in variants.TEMPLATES)
        template, match = next((pair for pair in pairs if pair[1] is not None), (None, None))
        if template is None:
            continue
        matched += 1
        if task.flop <= _MAX_FLOP:
            first = template.ranked(match, 90)[0]
            assert verify(task.ir, template.print(match, first)) == "", (task.name, first.name)

    assert matched == n_matched

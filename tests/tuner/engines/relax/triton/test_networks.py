"""Kernels that networks get without a record agree with their workloads, in the interpreter."""

from pathlib import Path

import pytest

from tests.tuner.engines.relax import networks
from tests.tuner.engines.relax.triton.conftest import Verify
from tests.tuner.engines.relax.triton.encoders import save_encoder
from tuner.engines.base import ModelFile
from tuner.engines.relax import worker
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.triton import variants
from tuner.engines.relax.triton.compilation import compiler

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
        ("zoo:mobilenet?image=32&dtype=float16", 20),
    ],
)
def test_kernels_of_networks_agree(reference: str, n_matched: int, verify: Verify) -> None:
    """Each product, convolution and softmax has a kernel, and the small ones are run."""
    assert _n_matched(networks.load(reference, 1), verify) == n_matched


@pytest.mark.parametrize("norms_first", [False, True], ids=["behind", "first"])
def test_kernels_of_encoders_agree(tmp_path: Path, *, norms_first: bool, verify: Verify) -> None:
    """A layer is five subgraphs: queries, keys and values, attention, and products with norms."""
    file = save_encoder(tmp_path, norms_first=norms_first)

    assert _n_matched(file, verify) == 5 + norms_first * 2


def _n_matched(file: ModelFile, verify: Verify) -> int:
    """Verify the kernels of a network; return the number of workloads that have some."""
    tasks = worker.extract(file, worker.describe_target("cuda:sm_90").spec).tasks
    matched = 0
    for task in tasks:
        function = workloads.load(task.ir)["main"]
        pairs = ((each, each.find(function)) for each in variants.TEMPLATES)
        template, match = next((pair for pair in pairs if pair[1] is not None), (None, None))
        if template is None:
            continue
        matched += 1
        if task.flop <= _MAX_FLOP:
            choices = template.ranked(match, 90)
            if template is variants.WINDOWS:  # few blocks are interpreted sooner
                choices = sorted(choices, key=lambda each: -each.rows * each.columns)
            first = choices[0]
            assert verify(task.ir, template.print(match, first)) == "", (task.name, first.name)
    return matched

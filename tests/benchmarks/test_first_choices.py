"""First choices on GPUs are counted, of networks that are cast to float16."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import first_choices
from tests.gpu_compilers import needs_triton

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


@needs_triton
def test_kernels_of_a_network_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An MLP has one row: its products read their weights at the bandwidth of the memory."""
    words = ["--only", "zoo-mlp", "--data-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["first_choices", *words])

    first_choices.main()

    network, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert total["networks"] == 1
    assert network["products"] == total["products"] == 3
    assert total["spills"] == total["misses"] == total["on_tensor_cores"] == 0
    assert {each["reason"] for each in network["kernels"]} == {"one row: weights are read once"}

"""Forked processes compute in eager where they cannot compile, and do not hang."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import ROOT

pytestmark = pytest.mark.tvm

_SCRIPT = """
import os, sys, warnings
import torch, tuner

torch.set_num_threads(1)
early = tuner.jit(lambda x: x + 1.0, data_dir=sys.argv[1])

def in_child():
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            ok = early(torch.ones(3)).tolist() == [2.0] * 3
        os._exit(10 * ok + any("was forked after" in str(warning.message) for warning in caught))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

print(in_child())
early(torch.ones(3))
print(in_child())
print(early(torch.ones(3)).tolist() == [2.0] * 3)
"""


@pytest.mark.slow("15 s: processes that import torch")
def test_forks_before_and_after_the_first_call(tmp_path: Path) -> None:
    """A child forked before compiles, one forked after warns, and the parent goes on."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _SCRIPT, str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip

    assert done.stdout.split() == ["10", "11", "True"], done.stderr

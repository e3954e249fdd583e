"""Forked processes raise an error where they cannot compile, and do not hang."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import ROOT

pytestmark = pytest.mark.tvm

_SCRIPT = """
import os, sys
import torch, tuner
from tuner.errors import WorkError

torch.set_num_threads(1)
early = tuner.jit(lambda x: x + 1.0, data_dir=sys.argv[1])

def in_child(expected):
    child = os.fork()
    if child == 0:
        try:
            ok = early(torch.ones(3)).tolist() == [2.0] * 3
            os._exit(0 if ok and expected == "result" else 1)
        except WorkError as error:
            os._exit(0 if "forked" in str(error) and expected == "error" else 2)
        finally:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

print(in_child("result"))
early(torch.ones(3))
print(in_child("error"))
print(early(torch.ones(3)).tolist() == [2.0] * 3)
"""


@pytest.mark.slow("15 s: processes that import torch")
def test_forks_before_and_after_the_first_call(tmp_path: Path) -> None:
    """A child forked before compiles, a child forked after raises, and the parent goes on."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _SCRIPT, str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip

    assert done.stdout.split() == ["0", "0", "True"], done.stderr

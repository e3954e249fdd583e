"""Jitted functions of CUDA tensors, on a stub driver whose memory is that of the CPU.

The torch of the tests has no CUDA, so tensors of the CPU claim to be on the GPU. The stub runs no
kernel: values are those of outputs that no kernel writes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import drivers

pytestmark = [
    pytest.mark.tvm,
    needs_nvrtc,
]

_PROCESS = """
import json, os, sys
import pytest, torch, tuner
from tests.tuner.engines.relax.gpu_cases import count, logged, torch_on_gpu
from tuner.errors import TargetError
from tuner.jit.torch import torch_calls

def function(numbers, values):
    return {"sum": numbers + 1, "pair": (values.reshape(4, 2).clone(), values.clone())}

data_dir, seen = sys.argv[1], {}
jitted = tuner.jit(function, data_dir=data_dir, strict=True)
numbers = torch.arange(6, dtype=torch.int32)
torch_calls.is_on_gpu = lambda device: True
torch_on_gpu(pytest.MonkeyPatch())
results = []
for seed in range(4):
    values = torch.arange(8.0) + seed
    with logged(data_dir) as log:
        result = jitted(numbers, values)
    shown, kept = result["pair"]
    assert result["sum"].shape == (6,) and result["sum"].dtype == torch.int32
    assert (shown == values.reshape(4, 2)).all() and (kept == values).all()
    assert kept.data_ptr() != values.data_ptr()
    results.append(result)
seen["own memory"] = len({result["sum"].data_ptr() for result in results}) == 4
seen["counts"] = [count(log, "cudaGraphLaunch"), count(log, "launch", "cudaMalloc"),
                  count(log, "cudaStreamSynchronize"), count(log, "cudaMemcpyAsync")]
info = jitted.cache_info()
seen["info"] = [info.hits, info.misses]
try:
    tuner.jit(function, data_dir=data_dir, target="llvm")(numbers, values)
except TargetError as error:
    seen["error"] = str(error)
pid = os.fork()
if pid == 0:
    try:
        jitted(numbers, values)
    except tuner.errors.WorkError:
        os._exit(7)
    os._exit(0)
seen["child"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.stdout.flush()
print(json.dumps(seen))
"""


@pytest.mark.in_ci
@pytest.mark.slow("20 s: another process builds for a GPU")
def test_libraries_of_gpus_write_tensors_of_torch(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Calls are graph launches without a wait; results have memory of their own."""
    driver = drivers.build(tmp_path_factory.mktemp("driver"))
    environ = os.environ | {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(ROOT)}
    environ["TUNER_N_BUILDERS"] = "1"

    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, str(tmp_path)],
        capture_output=True, text=True, env=environ, cwd=ROOT, check=False, timeout=300,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["own memory"]
    # Two outputs are an input, and are copied on the stream.
    assert seen["counts"] == [1, 0, 0, 2]
    assert seen["info"] == [3, 1]
    assert seen["error"] == "the arguments are on a GPU, and llvm is elsewhere"
    assert seen["child"] == 7

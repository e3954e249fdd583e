"""Objects for CUDA targets are compiled without a GPU."""

import functools
import operator
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tvm
from onnx import helper
from tvm import te, tirx
from tvm.s_tir import Schedule

from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import networks
from tests.tuner.engines.relax.conftest import Save, draw
from tuner.engines.base import ExtractedTask, ObjectRequest
from tuner.engines.relax import worker
from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.ir.blobs import Blob, DeviceModule
from tuner.engines.relax.schedules.gpu.defaults import schedule_by_default
from tuner.engines.relax.target import devices
from tuner.engines.relax.target.targets import make_target
from tuner.errors import RequestError, WorkError

_EM_CUDA = 190


@pytest.fixture
def matmul(save: Save) -> ExtractedTask:
    """Return a matrix product as a task for a GPU."""
    nodes = [helper.make_node("MatMul", ["data", "w"], ["y"])]
    model = save(nodes, (128, 64), {"w": draw(64, 96)})
    (task,) = worker.extract(model, worker.describe_target("cuda:sm_90").spec).tasks
    return task


@pytest.fixture
def relu(save: Save) -> ExtractedTask:
    """Return an activation as a task for a GPU, which only NVRTC compiles."""
    model = save([helper.make_node("Relu", ["data"], ["y"])], (128, 64), {})
    (task,) = worker.extract(model, worker.describe_target("cuda:sm_90").spec).tasks
    return task


def compile_task(
    task: ExtractedTask, folder: Path, *, arch: str = "sm_90", trace: str = ""
) -> dict[str, bytes]:
    """Compile a task and return its files."""
    folder.mkdir()
    spec = worker.describe_target("cuda:sm_90").spec.replace("sm_90", arch)
    worker.compile_subgraph(ObjectRequest(task.ir, spec, trace, "tested", str(folder)))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def trace_of(task: ExtractedTask) -> str:
    """Return a trace that binds an element of the output to a thread."""
    schedule = Schedule(workloads.load(task.ir))
    block = schedule.get_sblock("matmul")
    i, j, _ = schedule.get_loops(block)
    outer, inner = schedule.split(schedule.fuse(i, j), [None, 64])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    return traces.dump(schedule.trace)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_fallback_is_host_code_and_a_binary(relu: ExtractedTask, arch: str, tmp_path: Path) -> None:
    """The binary is an ELF file of the requested architecture."""
    files = compile_task(relu, tmp_path / "object", arch=arch)

    assert set(files) == {"kernel.o", "kernel.cubin"}
    binary = files["kernel.cubin"]
    assert binary[:4] == b"\x7fELF"
    assert int.from_bytes(binary[18:20], "little") == _EM_CUDA
    assert binary[49] == int(arch.removeprefix("sm_"))
    assert b"__tvm_ffi_tested" in files["kernel.o"]
    assert b"tested_kernel" in binary


@needs_nvrtc
def test_trace_is_compiled(matmul: ExtractedTask, tmp_path: Path) -> None:
    """The bytes differ from a fallback's, are reproducible, and need no tensor intrinsics."""
    loaded = set(sys.modules)
    trace = trace_of(matmul)

    first = compile_task(matmul, tmp_path / "first", trace=trace)
    again = compile_task(matmul, tmp_path / "again", trace=trace)
    fallback = compile_task(matmul, tmp_path / "fallback")

    assert first == again
    assert first["kernel.cubin"] != fallback["kernel.cubin"]
    assert "tvm.s_tir.tensor_intrin.cuda" not in set(sys.modules) - loaded


@needs_nvrtc
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_that_cuda_lacks_in_half_precision_compile(dtype: str) -> None:
    """They are computed in float32."""
    data = te.placeholder((256,), dtype, name="data")
    names = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "log1p", "sinh")

    def every(i: Any) -> Any:
        results = [getattr(tirx, name)(data[i]) for name in names]
        return functools.reduce(operator.add, results)

    schedule = Schedule(te.create_prim_func([data, te.compute((256,), every, name="result")]))
    (loop,) = schedule.get_loops(schedule.get_sblock("result"))
    schedule.bind(loop, "threadIdx.x")
    target = make_target(worker.describe_target("cuda:sm_90").spec)

    _, device = nvrtc.build(schedule.mod, target)

    assert device.code[:4] == b"\x7fELF"


@needs_nvrtc
@pytest.mark.parametrize(
    ("dtype", "arch"),
    [("float16", "sm_75"), ("float32", "sm_90"), ("float64", "sm_90")],
)
def test_extremes_keep_nan(dtype: str, arch: str) -> None:
    """Maxima, in vectors and over threads, are functions that keep NaN, and start at infinity."""
    lanes = 2
    data = te.placeholder((3, 300 * lanes), dtype, name="data")
    clipped = te.compute(data.shape, lambda i, j: te.min(data[i, j], tirx.const(6.0, dtype)), "c")
    term = te.reduce_axis((0, 300 * lanes), "term")
    largest = te.compute((3,), lambda i: te.max(clipped[i, term], term), "largest")
    schedule = Schedule(te.create_prim_func([data, largest]))
    row, term = schedule.get_loops(schedule.get_sblock("largest"))
    _, thread = schedule.split(term, [None, 64])
    schedule.bind(row, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    row, term = schedule.get_loops(schedule.get_sblock("c"))
    _, thread, vector = schedule.split(term, [None, 64, lanes])
    schedule.bind(row, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(vector)
    target = make_target(worker.describe_target(f"cuda:{arch}").spec)

    built, _ = nvrtc.build(schedule.mod, target)

    (device,) = Blob.of(built).devices
    _, kernels = device.code.decode().split('extern "C" __global__', 1)
    assert {"tuner_max", "tuner_min"} <= set(re.findall(r"\w+", kernels))
    assert not re.search(r"\b(max|min)\(", kernels)
    assert "-CUDART_INF" in kernels


def test_key_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets for a GPU contain the settings of NVRTC; others do not."""
    monkeypatch.setenv("TVM_CUDA_NVRTC_EXTRA_OPTS", "--ftz=false")

    compiler = worker.describe_target("cuda:sm_90").compiler

    assert compiler["options"] == {"TVM_CUDA_NVRTC_EXTRA_OPTS": "--ftz=false"}
    assert {"nvrtc", "headers"} <= set(compiler)
    assert "nvrtc" not in worker.describe_target("llvm").compiler


@needs_nvrtc
def test_versions_of_the_compiler_are_known() -> None:
    """The versions of NVRTC and of both kinds of headers are read."""
    compiler = nvrtc.describe_compiler()

    assert compiler["nvrtc"].startswith("13.")
    assert compiler["headers"]["cuda"] >= 13000
    assert compiler["headers"]["cccl"] >= 3000000


def test_missing_nvrtc_is_named(
    relu: ExtractedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message contains the command that installs it."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)

    with pytest.raises(RequestError, match=r"pip install 'subgraph-tuner\[cuda\]'"):
        compile_task(relu, tmp_path / "object")

    assert worker.describe_target("cuda:sm_90").compiler["nvrtc"] is None


def test_nvcc_is_another_compiler(
    relu: ExtractedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM's variable chooses it, its version is in the key, and its absence is an error."""
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    nvrtc._nvcc_version.cache_clear()
    if shutil.which("nvcc"):
        files = compile_task(relu, tmp_path / "object")
        assert files["kernel.cubin"][:4] == b"\x7fELF"
        assert worker.describe_target("cuda:sm_90").compiler["nvcc"]

    monkeypatch.setenv("PATH", str(tmp_path))
    nvrtc._nvcc_version.cache_clear()
    with pytest.raises(RequestError, match="nvcc, which is not on the PATH"):
        compile_task(relu, tmp_path / "none")
    nvrtc._nvcc_version.cache_clear()


def test_unknown_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message lists the choices."""
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "clang")

    with pytest.raises(RequestError, match="must be nvrtc or nvcc, got 'clang'"):
        worker.describe_target("cuda:sm_90")


@needs_nvrtc
def test_unknown_architecture_is_an_error(matmul: ExtractedTask, tmp_path: Path) -> None:
    """The message contains NVRTC's reason."""
    with pytest.raises(WorkError, match="gpu-architecture"):
        compile_task(matmul, tmp_path / "object", arch="sm_52")


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_80", "8.0", True),
        ("sm_80", "8.6", True),
        ("sm_86", "8.0", False),
        ("sm_80", "9.0", False),
        ("sm_90a", "9.0", True),
        ("sm_120", "12.0", True),
        ("sm_103a", "10.3", True),
        ("sm_100a", "10.3", False),
        ("gfx906", "9.0", False),
    ],
)
def test_binaries_run_on_their_generation(arch: str, capability: str, runs: bool) -> None:
    """The major version must match, the minor one must not be smaller; letters match exactly."""
    assert devices.runs_on(arch, capability) is runs


def test_device_code_is_read_back() -> None:
    """A truncated module is an error."""
    kernel = b"".join(len(part).to_bytes(8, "little") + part for part in (b"k", b"k")) + b"\0" * 24
    device = DeviceModule("cubin", (1).to_bytes(8, "little") + kernel, b"code")

    assert DeviceModule.parse(device.dump()) == device
    with pytest.raises(ValueError, match="2 bytes early"):
        DeviceModule.parse(device.dump()[:-2])


def test_grouped_convolution_gets_the_schedule_that_lowers(save: Save) -> None:
    """TVM refuses the kernel of the first matching rule, so another rule is used."""
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["c"], kernel_shape=[1, 1], group=4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    model = save(nodes, (1, 24, 8, 8), {"w": draw(112, 6, 1, 1)})
    spec = worker.describe_target("cuda:sm_90").spec
    target = make_target(spec, intrinsics=False)
    task = max(worker.extract(model, spec).tasks, key=lambda each: each.flop)

    scheduled = schedule_by_default(workloads.load(task.ir), target)

    with nvrtc.sources_kept():
        assert len(Blob.of(tvm.tirx.build(scheduled, target=target)).devices) == 1


@pytest.mark.slow("compiles kernels for many seconds")
def test_every_kind_of_layer_has_a_default_schedule() -> None:
    """Convolutions, pooling, reductions and transpositions become code for a GPU."""
    target = make_target(worker.describe_target("cuda:sm_90").spec, intrinsics=False)
    network = lower(networks.load("zoo:squeezenet_v1.1?image=32", 1), target)
    subgraphs = find_subgraphs(network)

    for each in subgraphs:
        scheduled = schedule_by_default(each.module, target)
        with nvrtc.sources_kept():
            built = tvm.tirx.build(scheduled, target=target)
        (device,) = Blob.of(built).devices
        assert device.form == "cuda"
        assert b"threadIdx.x" in device.code, each.name
    assert len(subgraphs) > 10

"""The code of candidates as people read it."""

from tvm import tirx

from tests.gpu_compilers import needs_nvrtc, needs_triton
from tests.tuner.engines.relax.conftest import described
from tests.tuner.engines.relax.triton.conftest import SPEC, product
from tuner.engines.base import BuildRequest
from tuner.engines.relax.codegen.cuda.kernel_texts import print_kernel
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.target.targets import describe_target, make_target
from tuner.engines.relax.triton import variants


def test_a_kernel_of_a_cpu_is_tir_llvm_and_instructions() -> None:
    """They are of the schedule and the target of the record, without what debuggers read."""
    spec, ir = described("skylake-avx512").spec, product((1, 8, 64, 32), "float32")
    trace = ranking.compute_trace(workloads.load(ir), make_target(spec))

    code = print_kernel(BuildRequest(ir, spec, trace), ["schedule", "source", "assembly"])

    assert list(code) == ["schedule", "source", "assembly"]
    assert "T.vectorized" in code["schedule"] or "T.parallel" in code["schedule"]
    assert "define" in code["source"]
    assert "zmm" in code["assembly"]
    for text in (code["source"], code["assembly"]):
        assert "!dbg" not in text
        assert ".debug" not in text


@needs_triton
def test_a_kernel_of_triton_is_a_configuration_a_source_and_ptx() -> None:
    """The configuration names every decision."""
    module, target = workloads.load(product((1, 64, 64, 64))), make_target(SPEC)
    schedule = variants.GEMM.schedule(module, target, variants.GEMM.choices(module, target)[0])
    trace = traces.dump(schedule.trace, variants.GEMM.name_of(schedule))
    request = BuildRequest(product((1, 64, 64, 64)), SPEC, trace)

    code = print_kernel(request, ["schedule", "source", "assembly"])

    assert "n_warps = " in code["schedule"]
    assert "tl.dot" in code["source"]
    assert ".visible .entry" in code["assembly"]


@needs_nvrtc
def test_a_kernel_of_cuda_is_tir_cuda_and_ptx() -> None:
    """A workload without a trace has the default schedule; Triton has no kernel for this one."""
    spec = describe_target("cuda:sm_90").spec
    request = BuildRequest(product((1, 16, 16, 32), after=tirx.acos), spec, "")

    code = print_kernel(request, ["schedule", "source", "assembly"])

    assert "blockIdx.x" in code["schedule"]
    assert "__global__" in code["source"]
    assert ".visible .entry" in code["assembly"]

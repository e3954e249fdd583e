"""Candidates for GPUs are proposed, compiled and embedded in artifacts without a GPU."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import networks
from tuner import cost_models
from tuner.cost_models import features as feature_blobs
from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    Candidate,
    MeasuredTrace,
    SearchRequest,
    TargetInfo,
)
from tuner.engines.relax import worker
from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.ir.blobs import Blob, DeviceModule
from tuner.engines.relax.schedules.gpu import intrinsics
from tuner.engines.relax.search import spaces
from tuner.engines.relax.search.gpu import gpu_sampling
from tuner.engines.relax.search.gpu.gpu_resources import Limits, Plan
from tuner.engines.relax.target.targets import make_target

pytestmark = [needs_nvrtc, pytest.mark.slow("compiles kernels for many seconds")]

# What starts an ELF file for a GPU.
_CUBIN = b"\x7fELF\x02\x01\x01"


@pytest.fixture(scope="module")
def target() -> TargetInfo:
    """Canonical JSON of an absent GPU."""
    return worker.describe_target("cuda:sm_90")


@pytest.fixture
def build(target: TargetInfo, tmp_path: Path) -> Callable[[bytes, str], BuildResult]:
    """Builder of candidates, each in a separate folder."""
    numbers = iter(range(1000))

    def make(ir: bytes, trace: str) -> BuildResult:
        out = tmp_path / str(next(numbers))
        return worker.build(BuildRequest(ir, target.spec, trace, str(out)))

    return make


def product(dtype: str, total: str, *, transposed: bool = True) -> bytes:
    """Return a matrix product with operands of one dtype and sums of another."""
    a = te.placeholder((64, 128), dtype, name="a")
    b = te.placeholder((96, 128) if transposed else (128, 96), dtype, name="b")
    k = te.reduce_axis((0, 128), name="k")
    c = te.compute(
        (64, 96),
        lambda i, j: te.sum(
            a[i, k].astype(total) * (b[j, k] if transposed else b[k, j]).astype(total), axis=k
        ),
        name="c",
    )
    return workloads.dump(workloads.as_workload(te.create_prim_func([a, b, c])))


def search(ir: bytes, target: TargetInfo, n: int = 4, seed: int = 5) -> list[Candidate]:
    """Run a first round of search."""
    model = cost_models.create("random", 0).save()
    return worker.propose(SearchRequest(ir, target.spec, (), model, n, 48, 1, seed))


def test_single_precision_is_kept(target: TargetInfo) -> None:
    """No tensor core supports float32, and none is used for it."""
    ir = product("float32", "float32")

    assert not any(intrinsics.named_in(candidate.trace) for candidate in search(ir, target, 8))


@pytest.mark.parametrize(
    ("dtype", "total", "name"),
    [
        ("float16", "float16", "wmma_sync_16x16x16_f16f16f16_trans"),
        ("float16", "float32", "wmma_sync_16x16x16_f16f16f32_trans"),
        ("int8", "int32", "wmma_sync_16x16x16_s8s8s32_trans"),
        ("bfloat16", "float32", "wmma_sync_16x16x16_bf16bf16f32_trans"),
    ],
)
def test_tensor_cores_are_used_where_dtypes_allow(
    target: TargetInfo,
    build: Callable[[bytes, str], BuildResult],
    dtype: str,
    total: str,
    name: str,
) -> None:
    """Candidates name the intrinsic, compile, and equal the programs of the search."""
    ir = product(dtype, total)
    candidates = [
        candidate
        for candidate in search(ir, target, 24)
        if name in intrinsics.named_in(candidate.trace)
    ]

    assert candidates
    assert build(ir, candidates[0].trace).error_text == ""
    scheduled = traces.schedule_module(
        workloads.load(ir), candidates[0].trace, make_target(target.spec)
    )
    assert workloads.hash_of(scheduled) == candidates[0].module_hash


@pytest.mark.parametrize(
    ("arch", "dtype", "total", "n_kinds"),
    [
        ("sm_60", "float16", "float16", 0),
        ("sm_70", "float16", "float16", 1),
        ("sm_70", "int8", "int32", 0),
        ("sm_75", "int8", "int32", 1),
        ("sm_75", "bfloat16", "float32", 0),
        ("sm_80", "bfloat16", "float32", 1),
        ("sm_90a", "bfloat16", "float32", 1),
        ("sm_90", "float64", "float64", 0),
    ],
)
def test_tensor_cores_are_those_of_the_architecture(
    arch: str, dtype: str, total: str, n_kinds: int
) -> None:
    """Older GPUs support fewer dtypes."""
    # NVRTC no longer compiles for the oldest of them: such targets are only made here.
    spec = worker.describe_target("cuda:sm_90").spec.replace("sm_90", arch)
    generated = spaces.gpu_spaces(product(dtype, total), spec)

    names = {
        name
        for candidate in generated
        for name in intrinsics.named_in(traces.dump(candidate.trace))
    }

    assert len({name for name in names if name.startswith("wmma_fill")}) == n_kinds


def test_intrinsics_of_other_dtypes_are_not_loaded() -> None:
    """A search loads only the intrinsics that it may use, of 96."""
    intrinsics.load(["wmma_fill_16x16x16_f32", "never_heard_of"])

    assert tvm.s_tir.TensorIntrin.get("wmma_fill_16x16x16_f32") is not None
    assert tvm.s_tir.TensorIntrin.get("wmma_fill_8x8x32_s32", allow_missing=True) is None
    assert tvm.s_tir.TensorIntrin.get("never_heard_of", allow_missing=True) is None


def test_search_is_a_pure_function(target: TargetInfo) -> None:
    """Equal requests give equal candidates, and measured ones are not proposed again.

    The first are random ones; a trained model chooses among evolved ones too.
    """
    ir = product("float32", "float32")
    untrained = cost_models.create("random", 0).save()
    request = SearchRequest(ir, target.spec, (), untrained, 16, 24, 2, 3)

    first = worker.propose(request)

    assert first
    assert all(candidate.is_random for candidate in first)
    assert worker.propose(request) == first
    measured = tuple(
        MeasuredTrace(candidate.trace, candidate.module_hash, 1e-3 * rank)
        for rank, candidate in enumerate(first, 1)
    )
    later = replace(request, measured=measured, cost_model=_trained(first), n_candidates=6)
    evolved = worker.propose(later)
    assert worker.propose(later) == evolved
    assert not all(candidate.is_random for candidate in evolved)
    assert not {candidate.module_hash for candidate in evolved} & {
        candidate.module_hash for candidate in first
    }


def _trained(candidates: list[Candidate]) -> bytes:
    """Return a model to which the first candidate was the fastest, and the last the slowest."""
    model = cost_models.create("xgb-ranking", 0)
    features = [feature_blobs.unpack(candidate.features) for candidate in candidates]
    tasks = np.zeros(len(features), dtype=np.int64)
    model.train(cost_models.TrainingSet(features, np.arange(1.0, len(features) + 1), tasks))
    assert not model.is_random
    return model.save()


def test_drawn_traces_fit_the_device(target: TargetInfo) -> None:
    """TVM's check, which lowers every program, refuses hardly any of them."""
    task = max(
        worker.extract(networks.load("zoo:resnet-18?image=32", 1), target.spec).tasks,
        key=lambda candidate: candidate.flop,
    )
    module, made = workloads.load(task.ir), make_target(target.spec)
    generated = spaces.gpu_spaces(task.ir, target.spec)
    drawn = gpu_sampling.sample(generated, module, made, 12, seed=1)
    n_refused = 0
    for trace in drawn:
        schedule = tvm.s_tir.Schedule(module)
        trace.apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        n_refused += not all(candidate.apply(schedule) for candidate in _processors(module, made))

    assert len(drawn) == 12
    assert n_refused <= 2


def _processors(module: tvm.IRModule, target: Any) -> list[Any]:
    context = tvm.s_tir.meta_schedule.TuneContext(
        mod=module, target=target, space_generator=traces._processors(target), num_threads=1
    )
    return list(context.space_generator.postprocs)


@pytest.mark.parametrize(("limit", "maximum"), [("max_shared_bytes", 16), ("max_registers", 31)])
def test_plan_refuses_what_exceeds_a_device(target: TargetInfo, limit: str, maximum: int) -> None:
    """Decisions that fit a larger device are refused by the shared memory or the registers."""
    ir, made = product("float32", "float32"), make_target(target.spec)
    (space, *_) = spaces.gpu_spaces(ir, target.spec)
    limits = Limits(workloads.load(ir), made)
    decisions = Plan(space.trace, limits).draw(Random(0))
    assert decisions is not None

    setattr(limits, limit, maximum)

    assert not Plan(space.trace, limits).fits(decisions)
    assert Plan(space.trace, limits).draw(Random(0)) is None


@pytest.mark.parametrize(("n_lanes", "fits"), [(2, True), (4, False)])
def test_plan_refuses_fetches_that_tvm_does_not_build(
    target: TargetInfo, n_lanes: int, fits: bool
) -> None:
    """Fetches of four numbers from rows of two are refused in three dimensions."""
    ir, made = task_of("conv2d_add_relu[1x16x16x128]", target), make_target(target.spec)
    module = workloads.load(ir)
    (space, *_) = spaces.gpu_spaces(ir, target.spec)
    outputs = [[1, 1, 1, 1, 1], [2, 1, 8, 1, 1], [2, 1, 4, 2, 1], [1, 2, 2, 8, 4]]
    factors = iter([*outputs, [1, 1, 3], [3, 1, 1], [32, 2, 1]])
    numbers = iter([0, n_lanes - 1, 0])
    decisions = {
        candidate: next(numbers if str(candidate.kind.name) == "SampleCategorical" else factors)
        for candidate in space.trace.decisions
    }
    trace = tvm.s_tir.schedule.Trace(space.trace.insts, decisions)

    assert Plan(trace, Limits(module, made)).fits(decisions) is fits
    scheduled = traces.schedule_module(module, traces.dump(trace), made)
    with nullcontext() if fits else pytest.raises(RuntimeError, match="eval_vec_"):
        nvrtc.lower(scheduled, made)


def test_sums_across_threads_in_a_loop_are_not_unrolled(target: TargetInfo) -> None:
    """TVM builds drawn and mutated traces, which it could not if the loop were unrolled."""
    ir, made = task_of("mean[1x1x1x512]", target), make_target(target.spec)
    module = workloads.load(ir)

    candidates = search(ir, target, 24)
    for candidate in candidates:
        nvrtc.lower(traces.schedule_module(module, candidate.trace, made), made)

    fused = next(candidate.trace for candidate in candidates if "SetScope" in candidate.trace)
    instructions, decisions = json.loads(fused)
    decisions[-1][1] = 7
    scheduled = traces.schedule_module(module, json.dumps([instructions, decisions]), made)
    with pytest.raises(RuntimeError, match="load_remap_"):
        nvrtc.lower(scheduled, made)


def task_of(name: str, target: TargetInfo) -> bytes:
    """Return a task of ResNet-18 at a small size, by its name."""
    tasks = worker.extract(networks.load("zoo:resnet-18?image=32", 1), target.spec).tasks
    return next(candidate.ir for candidate in tasks if candidate.name == name)


def test_unused_headers_are_removed_from_sources(target: TargetInfo) -> None:
    """Half a second of compilation is saved; code that needs the headers keeps them."""
    ir, made = product("float32", "float32"), make_target(target.spec)
    (candidate, *_) = search(ir, target, 1)
    scheduled = traces.schedule_module(workloads.load(ir), candidate.trace, made)
    source = Blob.of(nvrtc.lower(scheduled, made)).devices[0].code.decode()
    using = source + "static_assert(std::is_same<float, float>::value);"

    assert "type_traits" in source.partition("#else")[0]
    assert "type_traits" not in nvrtc._without_traits(source).partition("#else")[0]
    assert nvrtc._without_traits(using) == using
    for text in (source, using):
        code = DeviceModule("cuda", b"", text.encode())
        assert nvrtc.compile_device(code, made).code.startswith(_CUBIN)

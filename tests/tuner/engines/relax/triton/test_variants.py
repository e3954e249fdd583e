"""Triton's kernels as variants: matched, proposed, built, linked and launched."""

import json
import random
from pathlib import Path

import pytest
from tvm import te, tirx

from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax.triton.conftest import (
    attention,
    convolution,
    match,
    product,
    workload,
)
from tuner import cost_models
from tuner.engines.base import BuildRequest, ObjectRequest, SearchRequest, variant_of
from tuner.engines.relax import worker
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules.gpu import block_limits
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton import ranking, variants
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.templates.configurations import Configuration
from tuner.engines.relax.triton.templates.contractions import Contraction
from tuner.errors import WorkError

pytestmark = needs_triton

_SPEC = worker.describe_target("cuda:sm_90").spec


def test_names_hold_every_decision() -> None:
    """A configuration follows from its name; other names are of other variants."""
    configuration = Configuration(64, 32, 128, 4, 8, 16, order="columns")

    assert configuration.name == "triton-gemm-64-32-128-4-8-sk16-columns"
    assert Configuration.named(configuration.name) == configuration
    assert Configuration.named("triton-gemm-64-32") is None


def _maximum() -> bytes:
    data, step = te.placeholder((16, 64), "float16", name="data"), te.reduce_axis((0, 64))
    return workload([data, te.compute((16,), lambda i: te.max(data[i, step], axis=step))])


def test_other_workloads_have_no_kernel() -> None:
    """Without a form of what follows a product, none is offered, and its name says why."""
    module = workloads.load(product((1, 16, 16, 32), after=tirx.acos))

    assert not variants.fits(module["main"])
    assert variants.by_default(module, make_target(_SPEC)) is None
    with pytest.raises(WorkError, match=r"does not fit the workload: .*acos has no form in Triton"):
        variants.print_named(Configuration(16, 16, 32, 2, 4).name, module["main"])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 128, 2304, 768), "float16"),
        ((1, 128, 768, 3072), "float16"),
        ((12, 128, 128, 64), "bfloat16"),
        ((1, 1, 4096, 1024), "float16"),
        ((1, 49, 512, 4608), "float32"),
        ((1, 256, 256, 512), "int8"),
    ],
)
@pytest.mark.parametrize("architecture", [80, 90])
def test_first_choices_fill_the_gpu(
    shape: tuple[int, int, int, int], dtype: str, architecture: int
) -> None:
    """There are as many blocks as half of the multiprocessors, or all that the shape allows."""
    contraction = match(Contraction, product(shape, dtype))

    first = ranking.ranked(contraction, architecture)[0]

    n_batches, n_rows, n_columns, _ = shape
    n_blocks = n_batches * -(-n_rows // first.rows) * -(-n_columns // first.columns)
    assert n_blocks * first.n_splits >= 48


@pytest.mark.parametrize(("dtype", "arch"), [("float16", "sm_90"), ("float32", "sm_80")])
def test_first_choices_keep_their_registers(dtype: str, arch: str) -> None:
    """A product of the size of a layer spills nothing, and runs on tensor cores."""
    contraction = match(Contraction, product((1, 196, 256, 1024), dtype))

    first = ranking.ranked(contraction, compiler.number_of(arch))[0]
    program = variants.GEMM.print(contraction, first)
    facts = compiler.compile_kernel(program.kernels[0], arch).facts

    assert facts.uses_tensor_cores
    assert facts.stack_bytes == 0


@pytest.mark.parametrize(
    "ir",
    [
        product((1, 128, 768, 3072), "bfloat16"),
        convolution(14, (256, 256), 3),
        attention((12, 12), (128, 128, 64)),
    ],
    ids=["product", "convolution", "attention"],
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_drawn_configurations_fit_the_gpu(ir: bytes, arch: str) -> None:
    """They are on tensor cores, keep their sums in registers, and take what the host passes."""
    module, target = workloads.load(ir), make_target(worker.describe_target(f"cuda:{arch}").spec)
    template = next(each for each in variants.TEMPLATES if each.find(module["main"]) is not None)
    choice = random.Random(arch).choice(template.choices(module, target))

    kernels = template.print(template.find(module["main"]), choice).kernels
    binaries = [compiler.compile_kernel(kernel, arch) for kernel in kernels]

    assert binaries[0].facts.uses_tensor_cores
    for kernel, binary in zip(kernels, binaries, strict=True):
        assert binary.facts.stack_bytes <= 32
        assert binary.shared_bytes <= block_limits.shared_bytes_on_request(target)
        # Triton has two pointers of its own.
        assert binary.n_parameters == len(kernel.pointers) + (kernel.n_counters > 0) + 2


def test_traces_are_replayed() -> None:
    """A trace names the configuration, and gives the same program again."""
    module, target = workloads.load(product((1, 64, 64, 64))), make_target(_SPEC)
    choice = variants.GEMM.choices(module, target)[0]
    schedule = variants.GEMM.schedule(module, target, choice)
    trace = traces.dump(schedule.trace, variants.GEMM.name_of(schedule))

    replayed = traces.schedule_module(module, trace, target)

    assert variant_of(trace) == choice.name
    assert workloads.hash_of(replayed) == workloads.hash_of(schedule.mod)
    with pytest.raises(WorkError, match="does not fit the workload"):
        traces.schedule_module(workloads.load(_maximum()), trace, target)


def test_searches_begin_with_kernels_of_triton() -> None:
    """Most candidates of the first round are different configurations."""
    ir = product((1, 128, 256, 512))
    model = cost_models.create("random", 0).save()
    request = SearchRequest(ir, _SPEC, (), model, 8, 32, 1, seed=3)

    names = [variant_of(each.trace) for each in worker.propose(request)]

    assert len(names) == 8
    of_triton = [name for name in names if variants.named(name) is variants.GEMM]
    assert len(set(of_triton)) == len(of_triton) >= 6


def test_searches_of_attention_have_kernels_of_triton_alone() -> None:
    """TVM's rules raise for kernels with several kinds of reductions."""
    ir = attention((2, 2), (64, 64, 32))
    request = SearchRequest(ir, _SPEC, (), cost_models.create("random", 0).save(), 8, 32, 1, seed=3)

    names = [variant_of(each.trace) for each in worker.propose(request)]

    assert len(set(names)) == len(names) == 8
    assert {variants.named(name) for name in names} == {variants.ATTENTION}


def test_candidates_are_built(tmp_path: Path) -> None:
    """An artifact holds the kernels, and says which variant it is."""
    name = Configuration(32, 32, 32, 2, 4, 2).name
    trace = json.dumps({"variant": name, "trace": [[], []]}, separators=(",", ":"))
    request = BuildRequest(product((1, 64, 64, 256)), _SPEC, trace, str(tmp_path / "kernel"))

    built = worker.build(request)

    assert not built.error_text
    content = (tmp_path / "kernel" / "kernel.so").read_bytes()
    assert b"triton_gemm_" in content
    assert b"triton_add_" in content
    assert json.loads((tmp_path / "kernel" / "kernel.json").read_text())["variant"] == name


def test_unknown_configurations_are_errors(tmp_path: Path) -> None:
    """A name that no configuration has is one of another version."""
    trace = json.dumps({"variant": "triton-gemm-1", "trace": [[], []]}, separators=(",", ":"))
    request = BuildRequest(product((1, 64, 64, 64)), _SPEC, trace, str(tmp_path / "kernel"))

    assert "the record was made by another version" in worker.build(request).error_text


def test_objects_without_a_record_are_of_triton(tmp_path: Path) -> None:
    """The object of a product holds the binaries of its kernels, and the same bytes again."""
    contents = []
    for name in ("first", "again"):
        out = tmp_path / name
        out.mkdir()
        ir = product((1, 196, 256, 4608), after=tirx.erf)
        request = ObjectRequest(ir, _SPEC, "", "tested", str(out))
        info = worker.compile_subgraph(request).info
        contents.append({path.name: path.read_bytes() for path in out.iterdir()})

    assert contents[0] == contents[1]
    assert set(contents[0]) == {"kernel.o", *info["kernels"]}
    assert variants.named(info["variant"]) is variants.GEMM
    assert len(info["kernels"]) == 2  # the sums of 8 blocks, and the parts

"""Products and convolutions by oneDNN: which workloads have them, and what they compute."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import onnx
import pytest
from onnx import helper
from tvm.script import from_source

from tests.tuner.engines.relax.conftest import Save, built_candidate, draw
from tests.tuner.engines.relax.networks import build_untuned
from tests.tuner.networks.models import difference, model, run
from tuner.engines.base import BuildRequest, ExtractedTask, TargetInfo
from tuner.engines.relax import loading, worker
from tuner.engines.relax.ir import ir_checks, traces, workloads
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import registers_of
from tuner.engines.relax.schedules.variants import convolutions, products
from tuner.engines.relax.schedules.variants.onednn import Onednn
from tuner.engines.relax.search.sources import variants
from tuner.engines.relax.target.targets import make_target
from tuner.engines.runtime import onednn
from tuner.engines.verification import checks
from tuner.errors import RequestError, WorkError, install_command
from tuner.library import manifest
from tuner.networks.worker import load_model

pytestmark = pytest.mark.skipif(
    bool(onednn.problem()), reason="oneDNN has no build for this machine"
)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Load oneDNN again after a test in which it is missing."""
    yield
    onednn.load.cache_clear()


@pytest.fixture(scope="module")
def calling() -> TargetInfo:
    """Return the target of this CPU with oneDNN, on two cores."""
    spec = '{"kind":"llvm","mcpu":"%s","num-cores":2,"libs":["onednn"]}'
    mcpu = make_target(worker.describe_target("llvm").spec).attrs["mcpu"]
    return worker.describe_target(spec % mcpu)


class Case(NamedTuple):
    """A layer, and the variants that it has on two cores.

    Attributes:
        splits: Variants with AVX-512.
        splits_of_avx2: Variants with AVX2, for which oneDNN has kernels of fewer layouts, and none
            of products with packed weights; None if they are the same.
    """

    shape: tuple[int, ...]
    weight: tuple[int, ...]
    splits: set[str]
    attributes: Mapping[str, Any] = MappingProxyType({})
    nodes: tuple[onnx.NodeProto, ...] = ()
    splits_of_avx2: set[str] | None = None


BOTH = {"rows", "channels"}
SAME = {"pads": [1, 1, 1, 1]}
RELU = (helper.make_node("Relu", ["c"], ["y"]),)
RESIDUAL = (
    helper.make_node("Add", ["c", "data"], ["s"]),
    helper.make_node("Sigmoid", ["s"], ["y"]),
)
CASES = {
    "same": Case((1, 32, 9, 8), (32, 32, 3, 3), BOTH, SAME, RESIDUAL),
    "stride": Case(
        (1, 32, 15, 14), (64, 32, 3, 3), BOTH, {**SAME, "strides": [2, 2]}, RELU, {"channels"}
    ),
    "uneven": Case(
        (1, 16, 12, 11), (32, 16, 5, 3), BOTH, {"pads": [2, 0, 1, 1], "dilations": [1, 2]}, RELU
    ),
    "images": Case((3, 16, 7, 8), (32, 16, 3, 3), BOTH, {**SAME, "strides": [2, 1]}, RELU),
    "pointwise": Case((1, 32, 7, 7), (64, 32, 1, 1), BOTH, {}, RELU, {"channels"}),
    "narrow": Case((1, 32, 8, 8), (16, 32, 1, 1), {"rows"}),
    "padded below": Case((1, 32, 8, 8), (32, 32, 1, 1), BOTH, {"pads": [0, 0, 1, 1]}),
    "odd terms": Case((50, 100), (100, 192), set()),
    "skipping": Case((1, 32, 8, 8), (32, 32, 1, 1), BOTH, {"strides": [2, 2]}),
    "panels of 24": Case((1, 32, 12, 8), (96, 32, 3, 3), BOTH, SAME),
    "one row": Case((1, 64), (64, 128), {"channels"}, {}, RELU, set()),
    "matrix": Case((50, 96), (96, 96), BOTH, {}, RELU, set()),
    "sequence": Case((1, 13, 48), (48, 64), BOTH, splits_of_avx2=set()),
    "grouped": Case((1, 32, 8, 8), (32, 8, 3, 3), set(), {**SAME, "group": 4}, RELU),
    "odd": Case((1, 20, 8, 8), (20, 20, 3, 3), set(), SAME),
}


LARGE = Case((1, 64, 28, 28), (64, 64, 3, 3), BOTH, SAME)


def task_of(save: Save, target: TargetInfo, case: Case) -> ExtractedTask:
    """Return the task of a layer named ``c`` and what follows it."""
    output = "c" if case.nodes else "y"
    weights = {"w": draw(*case.weight)}
    if len(case.weight) == 4:
        weights["b"] = draw(case.weight[0], seed=1)
        first = helper.make_node("Conv", ["data", "w", "b"], [output], **case.attributes)
    else:
        first = helper.make_node("MatMul", ["data", "w"], [output])
    extraction = worker.extract(save([first, *case.nodes], case.shape, weights), target.spec)
    return max(extraction.tasks, key=lambda task: task.flop)


def calls_of(task: ExtractedTask, target: TargetInfo) -> dict[str, str]:
    """Return the trace of each variant that calls oneDNN."""
    spaces = variants.spaces_of(task.ir, target.spec)
    return {
        name: traces.dump(space.fresh(set(), 1, 1)[0].schedule.trace, name)
        for name, space in spaces.items()
        if onednn.is_call(name)
    }


def python(script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that loads oneDNN, if at all, in some environment."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, env={**os.environ, **environ}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_layers_have_variants(save: Save, calling: TargetInfo, name: str) -> None:
    """Some of them, on some CPUs."""
    case = CASES[name]

    calls = calls_of(task_of(save, calling, case), calling)

    is_narrow = registers_of(make_target(calling.spec)).lanes < 16
    expected = case.splits_of_avx2 if is_narrow else case.splits
    assert {each.split("-")[1] for each in calls} == (case.splits if expected is None else expected)


@pytest.mark.parametrize(
    "name",
    [
        *("uneven", "images", "one row", "sequence"),
        *(
            pytest.param(name, marks=pytest.mark.slow("compiles more of the same calls"))
            for name in (
                *("same", "stride", "pointwise", "narrow", "padded below", "skipping", "matrix"),
            )
        ),
    ],
)
def test_variants_agree_with_the_definition(
    save: Save, calling: TargetInfo, tmp_path: Path, name: str
) -> None:
    """With strides, dilation, uneven padding, several images, and parts of uneven sizes."""
    task = task_of(save, calling, CASES[name])

    for trace in calls_of(task, calling).values():
        kernel, paths = built_candidate(task, trace, calling, tmp_path)
        scheduled = traces.schedule_module(
            workloads.load(task.ir), trace, make_target(calling.spec)
        )
        assert ir_checks.n_parallel(scheduled["main"]) > 1
        verdict = checks.check(kernel, paths)
        assert not verdict.error_kind, verdict.error_text
        # No looser than for the definition.
        assert not kernel.is_loose


def test_products_without_a_kernel_are_not_offered() -> None:
    """OneDNN has only its reference, which calls refuse, for packed weights and AVX2."""
    script = "from tuner.engines.runtime import onednn; print(onednn.product_panel(50, 96, 96))"

    assert python(script, ONEDNN_MAX_CPU_ISA="AVX2").stdout.strip() == "0"


def test_a_kernel_names_onednn(save: Save, calling: TargetInfo, tmp_path: Path) -> None:
    """A program in any language that loads it without oneDNN is told which file is missing."""
    task = task_of(save, calling, CASES["stride"])
    trace = next(iter(calls_of(task, calling).values()))
    made = worker.build(BuildRequest(task.ir, calling.spec, trace, str(tmp_path / "kernel")))
    script = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"

    assert "libdnnl.so.3" in python(script, f"{made.artifact}/kernel.so").stderr


def test_each_part_runs_on_the_thread_that_calls(
    save: Save, calling: TargetInfo, tmp_path: Path
) -> None:
    """No thread of OpenMP is started, whatever its environment says."""
    task = task_of(save, calling, CASES["same"])
    trace = next(iter(calls_of(task, calling).values()))
    made = worker.build(BuildRequest(task.ir, calling.spec, trace, str(tmp_path / "kernel")))
    script = """
import sys
from pathlib import Path
from tuner.engines.relax import without_torch
from tuner.engines.relax.run.artifacts import load_kernel
from tuner.engines.verification import input_sets

def threads():
    return {task.name for task in Path("/proc/self/task").iterdir()}

kernel = load_kernel(*sys.argv[1:])
kernel.bind(input_sets.draw(input_sets.harmless(kernel.inputs)))
before = threads()
kernel.call()
print(len(threads() - before))
"""

    environ = {"OMP_NUM_THREADS": "8", "TVM_NUM_THREADS": "1"}
    assert python(script, made.artifact, calling.spec, **environ).stdout.strip() == "0"


def test_a_layout_that_onednn_has_no_kernel_for_is_refused(
    save: Save, calling: TargetInfo, tmp_path: Path
) -> None:
    """Its reference would take thousands of times as long."""
    task = task_of(save, calling, LARGE)
    (panel,) = {int(name.split("-")[-1]) for name in calls_of(task, calling) if "rows" in name}
    other = Onednn("rows", 2, 32 if panel == 64 else 64)
    program = other.rewrite(workloads.load(task.ir))
    assert program is not None
    schedule = other.schedule(program, make_target(calling.spec), 0)

    kernel, paths = built_candidate(
        task, traces.dump(schedule.trace, other.name), calling, tmp_path
    )

    assert checks.check(kernel, paths).error_kind == "wrong_result"


def test_padding_with_other_than_zeros_is_no_padding() -> None:
    """A mask, another fill, or a smaller bound is not what oneDNN pads."""
    text = """
# from tvm.script import ir as I
# from tvm.script import tirx as T

@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(v0: T.Buffer((1, 4, 4, 16), "float32"), v1: T.Buffer((1, 6, 6, 16), "float32")):
        for i, j, k, l in T.grid(1, 6, 6, 16):
            with T.sblock("pad"):
                n, y, x, c = T.axis.remap("SSSS", [i, j, k, l])
                v1[n, y, x, c] = T.if_then_else(
                    1 <= y and y < {end} and 1 <= x and x < 5,
                    v0[n, y - 1, x - 1, c], T.float32({fill})
                )
"""

    def padding(end: int, fill: float) -> Any:
        module = from_source(text.replace("{end}", str(end)).replace("{fill}", str(fill)))
        block = module["main"].body.block.body
        return products.padding_of(convolutions.block_of(block))

    assert padding(5, 0.0)[1] == (1, 1)
    assert padding(4, 0.0) is None
    assert padding(5, -1.0) is None


def test_other_targets_do_not_call_it(
    save: Save, calling: TargetInfo, target: TargetInfo, tmp_path: Path
) -> None:
    """They have no such variants, and refuse traces of them."""
    task = task_of(save, calling, CASES["same"])

    trace = next(iter(calls_of(task, calling).values()))

    assert not calls_of(task, target)
    with pytest.raises(WorkError, match="not among the libraries of the target"):
        traces.schedule_module(workloads.load(task.ir), trace, make_target(target.spec))
    refused = worker.build(BuildRequest(task.ir, target.spec, trace, str(tmp_path)))
    assert "oneDNN" in refused.error_text


def test_a_library_needs_it_where_it_runs(
    calling: TargetInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network whose kernel calls oneDNN is linked, agrees, and says what it needs."""
    weights = {"w": draw(64, 32, 3, 3)}
    node = helper.make_node("Conv", ["data", "w"], ["y"], kernel_shape=[3, 3])
    made = model([node], {"data": (1, 32, 9, 8)}, {"y": (1, 64, 7, 6)}, weights)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    loaded = load_model(str(path), {}, None, str(tmp_path / "models"))
    task = max(worker.extract(loaded.file, calling.spec).tasks, key=lambda each: each.flop)
    name, trace = next(iter(calls_of(task, calling).items()))

    library = build_untuned([loaded.file], calling, tmp_path, {task.workload: trace})

    data = draw(1, 32, 9, 8)
    (expected,) = run(path.read_bytes(), {"data": data})
    (actual,) = library({"data": data}).values()
    assert difference(actual, expected) < 1e-5
    described = manifest.read(tmp_path / "library")
    assert name in {subgraph.variant for subgraph in described.subgraphs}
    monkeypatch.setattr(onednn, "_path", lambda: tmp_path / "libmissing.so")
    onednn.load.cache_clear()
    with pytest.raises(RequestError, match="oneDNN is not installed"):
        loading.load(tmp_path / "library")
    monkeypatch.setattr(onednn, "load", lambda: "3.99.0")
    with pytest.raises(RequestError, match="is installed: build"):
        loading.load(tmp_path / "library")


def test_a_build_with_other_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of SYCL cannot be held back from inside a kernel."""
    monkeypatch.setattr(onednn, "_RUNTIMES", (1,))
    onednn.load.cache_clear()
    with pytest.raises(RequestError, match="threads of its own"):
        onednn.load()


def test_without_it_the_target_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that asks for it fails before anything is tuned."""
    monkeypatch.setattr(onednn, "_path", lambda: tmp_path / "libmissing.so")
    onednn.load.cache_clear()
    described = worker.describe_target("llvm+onednn")
    assert install_command("onednn") in described.problem

"""Wrong kernels are refused and correct ones are not, on real builds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx, topi

from benchmarks.robustness import kernel_cases, kernel_mutations
from benchmarks.robustness.verification import Judge, mutants
from tests.tuner.engines.relax import conftest
from tuner.engines.base import BuildRequest, RunRequest, RunResult, TargetInfo
from tuner.engines.relax import worker
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.run import artifacts
from tuner.engines.verification import input_sets, references
from tuner.engines.verification.interpreter import interpret, slabs
from tuner.engines.verification.interpreter.translation import translate
from tuner.engines.verification.limits import Highs, Limits

KERNELS = kernel_cases.functions()
JudgeOf = Callable[[str], Judge]


@pytest.fixture
def judge_of(tmp_path: Path) -> JudgeOf:
    """Factory of judges of kernels by name."""
    return lambda name: Judge(KERNELS[name](), tmp_path, seed=1)


def mutated(name: str, mutate: Callable[[str], str | None]) -> bytes:
    """Return a wrong variant of a kernel."""
    text = mutate(KERNELS[name]().script())
    assert text is not None
    return workloads.dump(workloads.as_workload(kernel_cases.parse(text)))


@pytest.mark.parametrize(
    "name",
    [
        *("conv2d_relu float32", "dense uint8 int8", "split float16"),
        *(
            pytest.param(name, marks=pytest.mark.slow("compiles further kernels"))
            for name in (
                *("depthwise float16", "matmul bfloat16", "layer_norm float32", "take float32"),
                *("max bfloat16", "where bool"),
            )
        ),
    ],
)
def test_a_kernel_is_accepted_and_its_mutants_are_refused(judge_of: JudgeOf, name: str) -> None:
    """Unscheduled builds of the kernel itself and of three wrong variants."""
    judge = judge_of(name)

    assert judge.verdict(judge.ir, "").error_text == ""
    n_mutants = 0
    for mutation, ir in mutants(KERNELS[name]().script()):
        assert judge.verdict(ir, "").error_kind == "wrong_result", mutation
        n_mutants += 1
    assert n_mutants == 3


def test_one_lost_term_of_4608_in_float16_is_found(judge_of: JudgeOf) -> None:
    """On whole numbers, whose sums are exact in float16; dense ones cannot reveal it."""
    name = "conv2d float16 4608 terms"
    lost = mutated(name, kernel_mutations.drop_last_term)
    judge = judge_of(name)

    assert judge.verdict(judge.ir, "").error_text == ""
    assert judge.verdict(lost, "", ["whole"]).error_kind == "wrong_result"


def test_every_output_is_compared(judge_of: JudgeOf) -> None:
    """Outputs that are exchanged are found, whichever is last."""
    ir = mutated("split float32", kernel_mutations.swap_outputs)

    verdict = judge_of("split float32").verdict(ir, "")

    assert verdict.error_text.startswith("output 0 at (0, 0) is")


def test_kernels_that_lose_nan_or_infinities_are_refused(tmp_path: Path) -> None:
    """Drawn inputs have NaN among numbers, and rows that are minus infinity."""
    x = te.placeholder((16, 12), "float32", name="x")
    zero, lowest = tirx.const(0, "float32"), tirx.const(-3e38, "float32")
    k = te.reduce_axis((0, 12), "k")
    kept = [
        te.compute(x.shape, lambda i, j: te.max(x[i, j], zero), "relu"),
        te.compute((16,), lambda i: te.max(x[i, k], axis=k), "largest"),
    ]
    lost = [
        te.compute(x.shape, lambda i, j: tirx.Select(x[i, j] > zero, x[i, j], zero), "relu"),
        te.compute((16,), lambda i: te.max(te.max(x[i, k], lowest), axis=k), "largest"),
    ]
    for right, wrong in zip(kept, lost, strict=True):
        folder = tmp_path / right.op.name  # references are kept by their path
        folder.mkdir()
        judge = Judge(te.create_prim_func([x, right]), folder, seed=1)
        function = te.create_prim_func([x, wrong])

        verdict = judge.verdict(workloads.dump(workloads.as_workload(function)), "")

        assert judge.verdict(judge.ir, "").error_text == ""
        assert verdict.error_kind == "wrong_result"


def test_a_logarithm_gets_positive_inputs(judge_of: JudgeOf) -> None:
    """One element that is not finite is enough."""
    judge = judge_of("log_sum float32")

    for path in judge.references.values():
        reference = references.load(path)
        assert all(spec.is_positive for spec in reference.input_set.specs)
        assert np.isfinite(reference.outputs[0].values).all()


@pytest.mark.parametrize("min_rows", [1, 1_000], ids=["few terms", "many terms"])
@pytest.mark.parametrize("name", ["conv2d_relu float32", "depthwise float16", "dense uint8 int8"])
def test_parts_of_a_product_are_the_product(
    monkeypatch: pytest.MonkeyPatch, name: str, min_rows: int
) -> None:
    """Parts of the result and parts of its terms are computed at a time."""
    program = translate(KERNELS[name](), fast_math=False)
    whole = references.make(program, "real", 1, growth=3.0)
    monkeypatch.setattr(interpret, "_MIN_ROWS", min_rows)
    monkeypatch.setattr(interpret, "_FACTOR_CHUNK", 13_000)

    parts = references.make(program, "real", 1, growth=3.0)

    for part, expected in zip(parts.outputs, whole.outputs, strict=True):
        if part.loose_bounds is not None and expected.loose_bounds is not None:
            np.testing.assert_allclose(part.loose_bounds, expected.loose_bounds, rtol=1e-5)
        np.testing.assert_allclose(part.values, expected.values, rtol=1e-6)
        if part.bounds is None or expected.bounds is None:
            assert part.bounds is expected.bounds
        else:
            np.testing.assert_allclose(part.bounds, expected.bounds, rtol=1e-5)


@pytest.mark.parametrize("name", ["conv2d_relu float32", "softmax float32", "layer_norm float32"])
def test_slabs_of_a_program_are_the_program(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Values and bounds do not depend on how much of the output is computed at a time."""
    program = translate(workloads.as_workload(KERNELS[name]())["main"])
    (whole,) = references.make(program, "real", 1).outputs
    cut = spy_on_slabs(monkeypatch)
    monkeypatch.setattr(slabs, "_MAX_ELEMENTS", 64)

    (parts,) = references.make(program, "real", 1).outputs

    assert max(cut) > 1
    assert parts.bounds is not None
    assert whole.bounds is not None
    np.testing.assert_allclose(parts.values, whole.values, rtol=1e-6)
    np.testing.assert_allclose(parts.bounds, whole.bounds, rtol=1e-4)


def spy_on_slabs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list to which each run appends the number of its slabs."""
    counts: list[int] = []

    def counted(*args: Any) -> list[Any]:
        result = slabs.slabs(*args)
        counts.append(len(result))
        return result

    monkeypatch.setattr(interpret, "slabs", counted)
    return counts


def test_a_maximum_of_inexact_terms_has_the_error_of_the_worst(judge_of: JudgeOf) -> None:
    """A function of terms gives each an error of its own; the maximum has one."""
    judge = judge_of("max of tanh float32")

    assert judge.verdict(judge.ir, "").error_text == ""
    reference = references.load(judge.references["real"])
    bounds = reference.outputs[0].bounds
    assert bounds is not None
    assert bounds.shape == reference.outputs[0].values.shape


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("take float32", [(0, 49)]),
        ("dense uint8 int8", [(0, 255), (-128, 127)]),
        ("add uint8", [(0, 255), (0, 255)]),
    ],
)
def test_integers_have_the_range_of_their_use(
    judge_of: JudgeOf, name: str, ranges: list[tuple[int, int]]
) -> None:
    """Indices are valid; operands have all values of their type."""
    reference = references.load(judge_of(name).references["real"])

    drawn = [(spec.low, spec.high) for spec in reference.input_set.specs if "int" in spec.dtype]
    assert drawn == ranges


def test_integers_do_not_overflow(judge_of: JudgeOf) -> None:
    """An overflow of 32 bits is undefined, so operands have fewer."""
    reference = references.load(judge_of("add int32").references["real"])

    assert reference.input_set.specs[0].high == 2**15 - 1
    assert reference.outputs[0].bounds is None


def test_an_index_that_is_computed_keeps_its_range() -> None:
    """Through a buffer, a cast and arithmetic."""
    x, i = te.placeholder((30, 4), "float32", "x"), te.placeholder((8,), "int64", "i")
    cast = topi.cast(i, "int32")
    function = te.create_prim_func([x, i, topi.take(x, topi.add(cast, cast), 0, mode="fast")])
    program = translate(function)

    limits = Limits(program)
    assert [limits.highs(buffer) for buffer in program.inputs] == [None, Highs(0, (29,) * 8)]


def test_a_kernel_that_changes_its_answer_is_wrong(
    judge_of: JudgeOf, target: TargetInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs are compared again after the samples."""
    judge = judge_of("add uint8")
    built = worker.build(BuildRequest(judge.ir, target.spec, "", str(tmp_path / "built")))
    original, n_calls = artifacts.Kernel.call, 0

    def call(kernel: artifacts.Kernel) -> list[Any]:
        nonlocal n_calls
        n_calls += 1
        outputs = original(kernel)
        return outputs if n_calls <= 2 else [output ^ 1 for output in outputs]

    monkeypatch.setattr(artifacts.Kernel, "call", call)
    request = RunRequest(
        built.artifact, target.spec, tuple(judge.references.values()), conftest.QUICK
    )
    results: list[RunResult] = [worker.run(request)]
    n_calls = 0
    results += worker.run_interleaved([request], 1)

    assert [result.error_kind for result in results] == ["wrong_result"] * 2
    assert n_calls == 3


def test_scheduled_kernels_of_several_outputs_are_built_and_accepted(judge_of: JudgeOf) -> None:
    """Schedules drawn from TVM's space."""
    judge = judge_of("split float32")

    traces = judge.schedules(3, seed=1)

    assert traces
    for trace in traces:
        assert judge.verdict(judge.ir, trace).error_text == ""


def test_rows_that_index_two_axes_are_within_both() -> None:
    """Both axes are read and written up to their ends."""
    data = te.placeholder((40, 7), "float32", "data")
    rows = te.placeholder((2, 300), "int64", "rows")
    updates = te.placeholder((300,), "float32", "updates")
    for output in (
        topi.gather_nd(data, rows),
        topi.scatter_nd(data, rows, updates, mode="update"),
    ):
        function = te.create_prim_func([data, rows, updates, output])

        made = references.make(translate(function), "whole", seed=0)

        (_, drawn, _) = input_sets.draw(made.input_set)
        assert drawn.max(axis=1).tolist() == [39, 6]


@pytest.mark.parametrize("seed", range(4))
def test_products_of_scaled_inputs_stay_within_their_type(seed: int) -> None:
    """The scales of an attention in half precision are inputs; its logits have to be finite."""
    q, k = te.placeholder((1, 64), "float16", "q"), te.placeholder((64, 64), "float16", "k")
    s, t = (te.placeholder((1,), "float16", name) for name in "st")
    scaled = te.compute(q.shape, lambda i, d: q[i, d] * s[0], "scaled")
    keys = te.compute(k.shape, lambda j, d: k[j, d] * t[0], "keys")
    logits = topi.nn.dense(scaled, keys, out_dtype="float16")
    function = te.create_prim_func([q, k, s, t, topi.nn.softmax(logits, 1)])
    program = translate(workloads.as_workload(function)["main"], fast_math=True)

    reference = references.make(program, "whole", seed)

    (output,) = reference.outputs
    assert np.isfinite(output.values).all()
    assert output.bounds is not None
    assert np.isfinite(output.bounds).all()

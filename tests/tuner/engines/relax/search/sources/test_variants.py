"""Variants of a workload take part in its rounds."""

from dataclasses import replace

import pytest
from onnx import helper

from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax.conftest import Save, draw
from tests.tuner.engines.relax.triton.conftest import product
from tuner import cost_models
from tuner.engines.base import (
    InputKind,
    MeasuredTrace,
    SearchRequest,
    TargetInfo,
    variant_of,
)
from tuner.engines.log_base import TraceBatch
from tuner.engines.relax import worker
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.search.sources import variants
from tuner.engines.verification import references
from tuner.engines.verification.interpreter.translation import translate
from tuner.errors import WorkError

LARGE, SMALL = "winograd-4x4", "winograd-2x2"


@pytest.fixture
def request_(save: Save, target: TargetInfo) -> SearchRequest:
    """First round on a convolution that has both variants."""
    node = helper.make_node("Conv", ["data", "w"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    model = save([node], (1, 16, 8, 8), {"w": draw(16, 16, 3, 3)})
    task = max(worker.extract(model, target.spec).tasks, key=lambda task: task.flop)
    model_bytes = cost_models.create("random", 1).save()
    return SearchRequest(task.ir, target.spec, (), model_bytes, 8, 16, 1, seed=3)


def measured(variant: str, latency: float | None, number: int = 0) -> MeasuredTrace:
    """Return a trial of a variant; empty for the workload itself."""
    trace = f'{{"variant":"{variant}","trace":[[],[]]}}' if variant else "[[],[]]"
    return MeasuredTrace(trace, f"{variant}{number}", latency)


def divided(request: SearchRequest, *trials: MeasuredTrace, n: int = 8) -> dict[str, int]:
    """Divide a round after some trials."""
    later = replace(request, measured=trials, n_candidates=n)
    return variants.divide(later, variants.spaces_of(request.ir, request.target))


@pytest.mark.parametrize(
    ("trace", "variant"),
    [
        ("[[],[]]", ""),
        ("", ""),
        ('{"variant":"winograd-4x4","trace":[[],[]]}', "winograd-4x4"),
        ('{"variant":"winograd-4x4","tr', "winograd-4x4"),
    ],
)
def test_a_trace_names_its_variant(trace: str, variant: str) -> None:
    """At its beginning, so that a part of the text is enough."""
    assert variant_of(trace) == variant


def test_a_first_round_tries_each_variant(request_: SearchRequest) -> None:
    """The candidates of a round are of the workload and of both variants, and distinct."""
    candidates = worker.propose(request_)

    names = [variant_of(candidate.trace) for candidate in candidates]
    assert [names.count(name) for name in (LARGE, SMALL)] == [2, 2]
    assert names.count("") == 4
    assert len({candidate.module_hash for candidate in candidates}) == 8
    assert all(candidate.features for candidate in candidates)
    # All islands agree on the schedules by rule that come first.
    other = worker.propose(replace(request_, seed=4))
    assert [each.trace for each in candidates[:2]] == [each.trace for each in other[:2]]


def test_measured_schedules_are_not_proposed_again(request_: SearchRequest) -> None:
    """A round that follows has other candidates, and none of a variant that lost."""
    first = worker.propose(request_)
    secs = {LARGE: 1.0, SMALL: 50.0, "": 50.0}
    trials = tuple(
        MeasuredTrace(each.trace, each.module_hash, secs[variant_of(each.trace)]) for each in first
    )

    second = worker.propose(replace(request_, measured=trials * 4, n_candidates=3))

    assert {variant_of(candidate.trace) for candidate in second} == {LARGE}
    assert not {each.module_hash for each in first} & {each.module_hash for each in second}


def test_a_roof_excludes_the_workload_itself(request_: SearchRequest) -> None:
    """A direct convolution that is too slow even at the peak of the device is not searched."""
    flop = workloads.flop_of(workloads.load(request_.ir))
    fast = [measured(LARGE, 1e-6, number) for number in range(4)]
    others = [measured(name, 1.1e-6, number) for name in ("", SMALL) for number in range(2)]

    with_peak = divided(replace(request_, peak_flops=flop / 1.05e-6), *fast, *others)
    without = divided(request_, *fast, *others)

    assert (with_peak[""], with_peak[LARGE] > 0) == (0, True)
    assert without[""] > 0


def test_an_exhausted_variant_that_wins_ends_the_search(request_: SearchRequest) -> None:
    """Nothing is proposed if only the winner could, and all its schedules are measured."""
    spaces = variants.spaces_of(request_.ir, request_.target)
    won = [measured(LARGE, 1.0, n) for n in range(len(spaces[LARGE].choices))]
    lost = [measured(name, 90.0, n) for name in ("", SMALL) for n in range(40)]

    shares = divided(request_, *won, *lost)

    assert not any(shares.values())
    assert worker.propose(replace(request_, measured=(*won, *lost))) == []


@needs_triton
def test_a_gpu_measures_templates_before_programs_of_rules(request_: SearchRequest) -> None:
    """Programs of TVM's rules get their first candidates when no configuration is left."""
    target = worker.describe_target("cuda:sm_90").spec
    request = replace(request_, ir=product((1, 256, 256, 256)), target=target)
    trials = [
        measured(
            space.variant.name_of(space.variant.schedule(space.program, space.target, choice)),
            1.0,
            number,
        )
        for space in variants.spaces_of(request.ir, request.target).values()
        for number, choice in enumerate(space.choices)
    ]

    for n in (0, 8, len(trials) - 1):
        assert divided(request, *trials[:n])[""] == 0
    assert divided(request, *trials)[""] > 0


def test_an_unknown_variant_cannot_be_replayed(request_: SearchRequest) -> None:
    """A record of another version, or one that does not fit, is refused by name."""
    with pytest.raises(WorkError, match="there is no variant fft"):
        traces.replay(workloads.load(request_.ir), '{"variant":"fft","trace":[[],[]]}')


def test_a_log_of_tvm_holds_no_variants(request_: SearchRequest) -> None:
    """TVM could not replay their schedules on the workload."""
    batch = TraceBatch(request_.ir, request_.target, (measured(LARGE, 1.0).trace,))

    (written,) = worker.write_traces(batch)

    assert written.problem == f"it is of variant {LARGE}, which TVM does not know"


@pytest.mark.parametrize("kind", ["real", "whole"])
def test_loose_bounds_are_wide_but_find_errors(request_: SearchRequest, kind: InputKind) -> None:
    """They are those of a variant only: thousandths of an output, where others are exact."""
    program = translate(workloads.load(request_.ir)["main"], fast_math=False)
    (strict,) = references.make(program, kind, 1).outputs
    (expected,) = references.make(program, kind, 1, growth=63.0).outputs

    loose = expected.loose().bounds
    assert loose is not None
    assert strict.loose() is strict
    assert (loose > (0.0 if strict.bounds is None else strict.bounds)).all()
    assert loose.max() < 2e-3 * abs(expected.values).max()

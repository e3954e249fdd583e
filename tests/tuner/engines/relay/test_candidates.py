"""Candidates of Ansor are a pure function of the records, built, verified, and timed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.environments import INTERPRETER, needs_relay
from tests.tuner.engines.relay.conftest import ENGINE, INSIDE, Call
from tuner import cost_models
from tuner.cost_models import features
from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    Candidate,
    EvaluatorSettings,
    ExtractedTask,
    MeasuredTrace,
    ReferenceRequest,
    RunRequest,
    RunResult,
    SearchRequest,
    TargetInfo,
)
from tuner.engines.verification import references
from tuner.errors import WorkError
from tuner.workers.pool import Pool, WorkerSettings

pytestmark = [
    *needs_relay,
    pytest.mark.slow("compiles with TVM 0.19, in an environment of its own"),
]

QUICK = EvaluatorSettings(min_repeat_ms=0)


def request_of(task: ExtractedTask, target: TargetInfo) -> SearchRequest:
    """Return a small search without records."""
    model = cost_models.create("random", seed=1)
    return SearchRequest(task.ir, target.spec, (), model.save(), 4, 32, 2, seed=3)


@pytest.fixture(scope="session")
def candidates(engine: Call, target: TargetInfo, convolution: ExtractedTask) -> list[Candidate]:
    """Four candidates."""
    candidates: list[Candidate] = engine("propose", request_of(convolution, target))
    return candidates


@pytest.fixture
def reference(engine: Call, target: TargetInfo, convolution: ExtractedTask, tmp_path: Path) -> str:
    """The expected output on dense inputs."""
    path = tmp_path / "reference.npz"
    path.write_bytes(engine("reference", ReferenceRequest(convolution.ir, target.spec, "real", 1)))
    return str(path)


@pytest.mark.parametrize("kind", ["convolution", "pooling"])
def test_equal_requests_give_equal_candidates(
    engine: Call, target: TargetInfo, request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    """Another process gives equal ones, though Ansor's features depend on memory addresses."""
    asked = request_of(request.getfixturevalue(kind), target)
    candidates: list[Candidate] = engine("propose", asked)

    with Pool(WorkerSettings(1, tmp_path / "worker.log", interpreter=INTERPRETER)) as another:
        again = another.call(ENGINE, "propose", asked)

    assert len({candidate.module_hash for candidate in candidates}) == 4
    assert again == candidates


def test_a_candidate_has_features_for_any_cost_model(candidates: list[Candidate]) -> None:
    """There is a row per store, and candidates are ordered by score."""
    shapes = {features.unpack(candidate.features).shape[1] for candidate in candidates}

    assert shapes == {164}
    assert [each.score for each in candidates] == sorted(
        (each.score for each in candidates), reverse=True
    )


def test_profile_of_a_workload(engine: Call, convolution: ExtractedTask) -> None:
    """Window, stride and grouping are those of the model, and traffic counts arguments once."""
    (profile,) = engine("profile", [convolution.ir])

    assert (profile.window, profile.grouping, profile.dtype) == ("3x3/2", "dense", "float32")
    assert profile.n_bytes == 4 * (8 * 15 * 15 + 16 * 8 * 9 + 16 * 7 * 7)


def test_peaks_of_this_cpu(engine: Call, target: TargetInfo) -> None:
    """Operations of two types, and the bandwidth of two levels."""
    try:
        peaks = engine("measure_peaks", target.spec)
    except WorkError as error:
        pytest.skip(str(error))

    assert set(peaks.flops) == {"float32", "float64"}
    assert min(*peaks.flops.values(), peaks.cache_bandwidth, peaks.memory_bandwidth) > 0.0


def test_random_candidates_come_on_top(
    engine: Call, target: TargetInfo, convolution: ExtractedTask, candidates: list[Candidate]
) -> None:
    """They are flagged, and differ from the others."""
    request = replace(request_of(convolution, target), n_random=2)

    more: list[Candidate] = engine("propose", request)

    assert more[:4] == candidates
    assert [each.is_random for each in more] == [False] * 4 + [True] * 2
    assert len({each.module_hash for each in more}) == 6


def test_measured_candidates_are_not_proposed_again(
    engine: Call, target: TargetInfo, convolution: ExtractedTask, candidates: list[Candidate]
) -> None:
    """Their traces seed the population, and a damaged one is left out."""
    measured = [
        MeasuredTrace(each.trace, each.module_hash, 1e-3 * n)
        for n, each in enumerate(candidates, start=1)
    ]
    damaged = MeasuredTrace('[["SP",99,0,1,[1,1,1],1]]', "0" * 16, 1e-6)
    request = replace(request_of(convolution, target), measured=(*measured, damaged))

    again: list[Candidate] = engine("propose", request)

    assert len(again) == 4
    assert not {each.module_hash for each in again} & {each.module_hash for each in candidates}


def test_a_trace_is_replayed_to_the_same_program(
    pool: Pool, target: TargetInfo, convolution: ExtractedTask, candidates: list[Candidate]
) -> None:
    """It is serialised to the same text again."""
    for candidate in candidates:
        replayed = pool.call(INSIDE, "replay", convolution.ir, target.spec, candidate.trace)
        assert replayed == [candidate.trace, candidate.module_hash]


def test_a_trace_goes_through_a_log_of_ansor(
    pool: Pool,
    target: TargetInfo,
    convolution: ExtractedTask,
    candidates: list[Candidate],
    tmp_path: Path,
) -> None:
    """A line is made of a task and a trace without loss."""
    asked = (convolution.ir, target.spec, candidates[0].trace, str(tmp_path / "log.json"))

    key, trace, expected = pool.call(INSIDE, "through_a_log", *asked)

    assert (key, trace) == (expected, candidates[0].trace)


def test_candidates_are_right_and_timed(
    engine: Call,
    target: TargetInfo,
    convolution: ExtractedTask,
    candidates: list[Candidate],
    reference: str,
    tmp_path: Path,
) -> None:
    """Their weights have the layout that they read, and every sample is kept."""
    packed = 0
    for number, candidate in enumerate(candidates):
        folder = str(tmp_path / str(number))
        request = BuildRequest(convolution.ir, target.spec, candidate.trace, folder)
        built: BuildResult = engine("build", request)
        assert built.error_text == ""
        result: RunResult = engine("run", RunRequest(folder, target.spec, (reference,), QUICK))
        assert result.error_text == ""
        assert len(result.run_secs or ()) >= 3
        packed += len(json.loads((tmp_path / str(number) / "kernel.json").read_text())["packed"])
    assert packed > 0


def test_a_wrong_output_is_a_wrong_result(
    engine: Call,
    target: TargetInfo,
    convolution: ExtractedTask,
    candidates: list[Candidate],
    reference: str,
    tmp_path: Path,
) -> None:
    """A single wrong element is detected."""
    folder = str(tmp_path / "candidate")
    engine("build", BuildRequest(convolution.ir, target.spec, candidates[0].trace, folder))
    expected = references.load(reference)
    expected.outputs[0].values.flat[7] += 0.1
    Path(reference).write_bytes(references.dump(expected))

    result: RunResult = engine("run", RunRequest(folder, target.spec, (reference,), QUICK))

    assert result.error_kind == "wrong_result"


def test_finals_run_in_turns(
    engine: Call,
    target: TargetInfo,
    convolution: ExtractedTask,
    candidates: list[Candidate],
    tmp_path: Path,
) -> None:
    """Each candidate gets its samples in every turn."""
    requests = []
    for number, candidate in enumerate(candidates[:2]):
        folder = str(tmp_path / str(number))
        engine("build", BuildRequest(convolution.ir, target.spec, candidate.trace, folder))
        requests.append(RunRequest(folder, target.spec, (), QUICK))

    results: list[RunResult] = engine("run_interleaved", requests, 2)

    assert [len(result.run_secs or ()) for result in results] == [6, 6]


def test_a_damaged_trace_is_a_build_error(
    engine: Call, target: TargetInfo, convolution: ExtractedTask, tmp_path: Path
) -> None:
    """The failure belongs to the candidate and costs a trial."""
    request = BuildRequest(convolution.ir, target.spec, '[["XX"]]', str(tmp_path))

    built: BuildResult = engine("build", request)

    assert "the trace cannot be replayed" in built.error_text


def test_devices_are_compared_by_a_kernel(engine: Call, target: TargetInfo, tmp_path: Path) -> None:
    """The unscheduled kernel runs long enough to be timed."""
    ir = engine("calibration_kernel", target.spec)
    built: BuildResult = engine("build", BuildRequest(ir, target.spec, "", str(tmp_path)))

    result: RunResult = engine("run", RunRequest(built.artifact, target.spec, (), QUICK))

    assert ir == engine("calibration_kernel", target.spec)
    assert min(result.run_secs or (0.0,)) > 1e-4


def test_weights_are_where_a_network_of_this_size_has_them(
    engine: Call, target: TargetInfo, convolution: ExtractedTask, tmp_path: Path
) -> None:
    """The artifact names the constants; a network larger than any cache has them in memory."""
    folder = str(tmp_path / "plain")
    engine("build", BuildRequest(convolution.ir, target.spec, "", folder))
    described = json.loads((tmp_path / "plain" / "kernel.json").read_text())
    small = RunRequest(folder, target.spec, (), replace(QUICK, network_bytes=1))
    large = replace(small, evaluator=replace(QUICK, network_bytes=2**60))

    results: list[RunResult] = [engine("run", request) for request in (small, large)]

    assert described["weights"] == [1]
    assert [(one.conditions or {})["weights"] for one in results] == ["shared cache", "memory"]
    # A machine that is busy all the time gives no reading.
    assert all(one.clock_secs is None or one.clock_secs > 0 for one in results)

"""Candidates are proposed by a pure function, built, and verified against the reference."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import CPUS, QUICK, Array, Save, described, draw
from tests.tuner.engines.relax.schedules.test_ranking import ranked_traces
from tests.tuner.networks import models
from tuner import cost_models
from tuner.cost_models import features
from tuner.devices import cpu_contention
from tuner.engines.base import (
    BuildRequest,
    EvaluatorSettings,
    ExtractedTask,
    InputKind,
    MeasuredTrace,
    ModelFile,
    ReferenceRequest,
    RunRequest,
    SearchRequest,
    TargetInfo,
)
from tuner.engines.relax import worker
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.run import clock
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.search import propose
from tuner.engines.relax.target.targets import make_target

KINDS: tuple[InputKind, ...] = ("whole", "real")
TaskOf = Callable[[str], ExtractedTask]
ArtifactOf = Callable[[str], str]
CONV = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


def nodes_of(kind: str) -> tuple[list[onnx.NodeProto], tuple[int, ...], dict[str, Array]]:
    """Return the nodes, input shape and weights of a model with one layer."""
    made = {
        "conv2d": (
            [
                helper.make_node("Conv", ["data", "w"], ["c"], **CONV),
                helper.make_node("Relu", ["c"], ["y"]),
            ],
            (1, 16, 14, 14),
            {"w": draw(32, 16, 3, 3)},
        ),
        "matmul": (
            [helper.make_node("MatMul", ["data", "w"], ["y"])],
            (16, 64),
            {"w": draw(64, 48)},
        ),
        "softmax": ([helper.make_node("Softmax", ["data"], ["y"], axis=-1)], (8, 100), {}),
        "pooling": (
            [helper.make_node("MaxPool", ["data"], ["y"], kernel_shape=[3, 3], strides=[2, 2])],
            (1, 16, 15, 15),
            {},
        ),
    }
    nodes, shape, weights = made[kind]
    return list(nodes), shape, weights


@lru_cache(maxsize=8)
def _extracted(kind: str, target: str) -> ExtractedTask:
    nodes, shape, weights = nodes_of(kind)
    proto = models.model(nodes, {"data": shape}, {"y": None}, weights)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(proto), path)
        tasks = worker.extract(ModelFile(str(path), "onnx", {"data": (shape, "float32")}), target)
    return max(tasks.tasks, key=lambda task: task.flop)


@pytest.fixture(scope="module")
def artifact_of(target: TargetInfo, tmp_path_factory: pytest.TempPathFactory) -> ArtifactOf:
    """Factory of the unscheduled kernel of the heaviest task, which no test changes."""

    @cache
    def build(kind: str) -> str:
        out, task = tmp_path_factory.mktemp(kind), _extracted(kind, target.spec)
        return worker.build(BuildRequest(task.ir, target.spec, "", str(out))).artifact

    return build


@pytest.fixture
def task_of(target: TargetInfo) -> TaskOf:
    """Factory of the heaviest task of a model with one layer."""
    return lambda kind: _extracted(kind, target.spec)


def request_of(task: ExtractedTask, target: TargetInfo, n: int = 6) -> SearchRequest:
    """Return the request of a first round."""
    model = cost_models.create("random", 0).save()
    return SearchRequest(task.ir, target.spec, (), model, n, 32, 2, seed=5)


def write_references(task: ExtractedTask, target: TargetInfo, folder: Path) -> tuple[str, ...]:
    """Compute the references of both kinds of inputs, and return their files."""
    paths = []
    for kind in KINDS:
        paths.append(folder / f"{kind}.npz")
        request = ReferenceRequest(task.ir, target.spec, kind, 1)
        paths[-1].write_bytes(worker.reference(request))
    return tuple(map(str, paths))


@pytest.mark.parametrize("kind", ["conv2d", "matmul", "softmax", "pooling"])
@pytest.mark.slow("compiles kernels for many seconds")
def test_candidates_build_run_and_agree(
    task_of: TaskOf, target: TargetInfo, tmp_path: Path, kind: str
) -> None:
    """Every candidate computes what the definition says, also with weights in another layout."""
    task = task_of(kind)
    references = write_references(task, target, tmp_path)
    candidates = worker.propose(request_of(task, target, 8))
    assert candidates
    packed = []
    for index, candidate in enumerate(candidates):
        out = str(tmp_path / str(index))
        built = worker.build(BuildRequest(task.ir, target.spec, candidate.trace, out))
        assert built.error_text == ""
        request = RunRequest(built.artifact, target.spec, references, QUICK)
        result = worker.run(request)
        assert result.error_kind is None, result.error_text
        assert result.run_secs is not None
        assert len(result.run_secs) == 3
        assert result.max_error is not None
        assert result.max_error < 1e-4
        packed += json.loads((tmp_path / str(index) / "kernel.json").read_text())["packed"]
    assert kind != "conv2d" or packed
    assert [32, 3, 3, 16] not in [each["shape"] for each in packed]


def test_propose_is_a_pure_function(task_of: TaskOf, target: TargetInfo) -> None:
    """Equal requests give equal candidates, with features and scores of the model.

    Another seed gives others; measured candidates, failed ones included, are not proposed again.
    """
    request = request_of(task_of("matmul"), target)

    first, again = worker.propose(request), worker.propose(request)
    other = worker.propose(replace(request, seed=6))

    assert first == again
    assert [each.trace for each in other] != [each.trace for each in first]
    arrays = [features.unpack(each.features) for each in first]
    assert {array.shape[1] for array in arrays} == {164}
    assert [each.score for each in first] == list(
        cost_models.load(request.cost_model).predict(arrays)
    )
    measured = tuple(
        MeasuredTrace(each.trace, each.module_hash, 1e-3 if index % 2 else None)
        for index, each in enumerate(first)
    )
    second = worker.propose(replace(request, measured=measured))
    hashes = [each.module_hash for each in (*first, *second)]
    assert second
    assert len(set(hashes)) == len(hashes)


def test_small_space_is_exhausted(save: Save, target: TargetInfo) -> None:
    """After every program was measured, no candidate is proposed."""
    model = save([helper.make_node("Relu", ["data"], ["y"])], (1, 4), {})
    (task,) = worker.extract(model, target.spec).tasks
    request = request_of(task, target, 16)
    measured: tuple[MeasuredTrace, ...] = ()
    for seed in range(1, 12):
        candidates = worker.propose(replace(request, seed=seed, measured=measured))
        if not candidates:
            break
        measured += tuple(MeasuredTrace(c.trace, c.module_hash, 1e-6) for c in candidates)
    else:
        pytest.fail("a space that small never ended")


def test_damaged_trace_is_a_build_error(
    task_of: TaskOf, target: TargetInfo, tmp_path: Path
) -> None:
    """An invalid trace, or one of another version or task, is a build error, not a crash."""
    task, other = task_of("matmul"), task_of("conv2d")
    foreign = worker.propose(request_of(other, target, 2))[0].trace
    whole = worker.propose(request_of(task, target, 2))[0].trace
    for trace in ("{", "[]", "[[],[]]", '{"a": 1}', foreign, whole[: len(whole) // 2]):
        request = BuildRequest(task.ir, target.spec, trace, str(tmp_path / "out"))
        result = worker.build(request)
        if trace != "[[],[]]":
            assert result.error_text, trace
            assert result.artifact == ""


def test_missing_artifact_raises(target: TargetInfo, tmp_path: Path) -> None:
    """A missing artifact is not a failure of the candidate."""
    with pytest.raises(FileNotFoundError):
        worker.run(RunRequest(str(tmp_path / "gone"), target.spec, (), QUICK))


def test_damaged_artifact_is_a_run_error(
    artifact_of: ArtifactOf, target: TargetInfo, tmp_path: Path
) -> None:
    """A library that does not load is data, not a crash."""
    damaged = shutil.copytree(artifact_of("matmul"), tmp_path / "damaged")
    (damaged / "kernel.so").write_bytes(b"no library")

    result = worker.run(RunRequest(str(damaged), target.spec, (), QUICK))

    assert result.error_kind == "run_error"


def test_slow_candidate_gets_the_fewest_samples(
    artifact_of: ArtifactOf, target: TargetInfo
) -> None:
    """A candidate that cannot win is timed briefly."""
    settings = EvaluatorSettings(min_repeat_ms=1000, repeat=4)
    request = RunRequest(artifact_of("matmul"), target.spec, (), settings)

    hopeless = worker.run(replace(request, best_secs=1e-12))
    hopeful = worker.run(replace(request, best_secs=1.0))

    # Other tests may disturb more of the samples than are taken again.
    assert len(hopeless.run_secs or ()) == 4
    assert 4 <= len(hopeful.run_secs or ()) <= 24


@pytest.mark.parametrize("cache_flush", [True, False])
def test_samples_with_and_without_a_flush(
    artifact_of: ArtifactOf, target: TargetInfo, cache_flush: bool
) -> None:
    """Both ways of timing give positive samples."""
    settings = EvaluatorSettings(
        number=2, repeat=5, min_repeat_ms=1, cache_flush=cache_flush, cooldown_ms=1
    )

    result = worker.run(RunRequest(artifact_of("softmax"), target.spec, (), settings))

    assert result.run_secs is not None
    assert len(result.run_secs) >= 5
    assert min(result.run_secs) > 0


@pytest.mark.slow("compiles kernels for many seconds")
@pytest.mark.parametrize("kind", ["conv2d", "softmax"])
def test_random_candidates_come_on_top(task_of: TaskOf, target: TargetInfo, kind: str) -> None:
    """They are flagged, differ from the others and from measured ones, and are the same again."""
    request = replace(request_of(task_of(kind), target), n_random=2)
    plain = worker.propose(replace(request, n_random=0))

    candidates = worker.propose(request)

    assert candidates[: len(plain)] == plain
    assert [each.is_random for each in candidates[-2:]] == [True, True]
    assert len({each.module_hash for each in candidates}) == len(candidates)
    assert worker.propose(request) == candidates


def test_too_few_candidates_are_made_up_for(task_of: TaskOf, target: TargetInfo) -> None:
    """A population of four yields no forty candidates; draws from the space do."""
    request = replace(request_of(task_of("conv2d"), target, 40), population=4)
    candidates = worker.propose(request)

    assert len({each.module_hash for each in candidates}) == 40
    assert sum(each.is_random for each in candidates) > 10


def test_the_clock_kernel_is_timed_beside_the_samples(
    artifact_of: ArtifactOf, target: TargetInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel tells how fast the device is, whatever the candidate.

    A reading whose threads wait for a core would not count, and busy cores give few others.
    """
    monkeypatch.setattr(cpu_contention.Reading, "is_disturbed_until", lambda *_: False)
    request = RunRequest(artifact_of("matmul"), target.spec, (), QUICK)
    readings = clock.readings(target.spec)
    assert readings is not None
    run, starts = readings._run, list[float]()

    def record() -> None:
        starts.append(time.perf_counter())
        run()

    monkeypatch.setattr(readings, "_run", record)
    asks: list[Callable[[], float | None]] = [
        lambda: worker.run(request).clock_secs,
        lambda: worker.run_interleaved([request, request], 2)[0].clock_secs,
        lambda: worker.run_interleaved([request, request], 2)[1].clock_secs,
        lambda: worker.clock_secs(target.spec, 0.001),
    ]
    for ask in asks:
        starts.clear()
        secs = ask()
        elapsed_secs = time.perf_counter() - starts[0]
        # A reading counts for some seconds.
        assert secs is not None
        assert min(each for _, each in readings._readings) <= secs < elapsed_secs


@pytest.mark.parametrize(("kind", "weights"), [("matmul", [1]), ("softmax", [])])
def test_weights_are_where_a_network_of_this_size_has_them(
    artifact_of: ArtifactOf, target: TargetInfo, kind: str, weights: list[int]
) -> None:
    """The artifact names the constants; a network larger than any cache has them in memory."""
    described = json.loads((Path(artifact_of(kind)) / "kernel.json").read_text())
    small = RunRequest(artifact_of(kind), target.spec, (), replace(QUICK, network_bytes=1))
    large = replace(small, evaluator=replace(QUICK, network_bytes=2**60))

    places = [(worker.run(request).conditions or {})["weights"] for request in (small, large)]

    assert described["weights"] == weights
    assert places == ["shared cache", "memory"]


@pytest.mark.parametrize(("kind", "mcpu"), [("conv2d", CPUS[2]), ("matmul", CPUS[1])])
def test_a_first_look_is_the_schedule_by_rule_without_a_search(
    task_of: TaskOf, mcpu: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of a single candidate of a task without records needs no population."""
    task, target = task_of(kind), described(mcpu)
    monkeypatch.setattr(propose, "_search", pytest.fail)

    (only,) = worker.propose(request_of(task, target, 1))

    module, made = workloads.load(task.ir), make_target(target.spec)
    by_rule = ranking.compute_variant(module, made) or ranking.compute_trace(module, made)
    assert only.trace == by_rule


def test_first_candidates_are_near_the_schedule_by_rule(task_of: TaskOf) -> None:
    """Half of them have its innermost tiles or other register tiles, half are its mutants."""
    task, target = task_of("matmul"), described(CPUS[1])
    (rule,) = worker.propose(request_of(task, target, 1))
    measured = (MeasuredTrace(rule.trace, rule.module_hash, 1e-3),)
    request = replace(request_of(task, target, 8), measured=measured)
    made, module = make_target(target.spec), workloads.load(task.ir)
    ranked = islice(ranked_traces(module, made), 40)
    by_rule = {traces.dump(trace) for trace in ranked}

    first, again = worker.propose(request), worker.propose(request)

    assert [each.module_hash for each in first] == [each.module_hash for each in again]
    assert 2 <= sum(each.trace in by_rule for each in first) <= 6
    assert rule.module_hash not in {each.module_hash for each in first}

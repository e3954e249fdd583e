"""Recurrent layers are loops over the kernel of a step, and compute what ONNX Runtime does."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm.s_tir import Schedule

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import build_proto, lower_proto, run_module
from tests.tuner.engines.relax.operator_cases import RECURRENT, Case, combine, recurrent
from tests.tuner.networks.models import model, run
from tuner.engines.base import (
    BuildRequest,
    EvaluatorSettings,
    ModelFile,
    RunRequest,
    TargetInfo,
)
from tuner.engines.relax import worker
from tuner.engines.relax.graph.definitions import step_loops
from tuner.engines.relax.graph.extract import Subgraph, find_subgraphs
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.ir.ir_checks import n_parallel
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.target.targets import make_target
from tuner.errors import WorkError
from tuner.library import manifest

_BOTH = recurrent("both", "LSTM", optional="b", batch=1, direction="bidirectional")


def spec_of(n_cores: int) -> str:
    """Return this CPU as a target with a number of cores."""
    target = json.loads(worker.describe_target("llvm").spec)
    return json.dumps({**target, "num-cores": n_cores})


def check(cases: list[Case], target: TargetInfo, folder: Path) -> tuple[manifest.KernelCall, ...]:
    """Build cases, compare all outputs with ONNX Runtime's; return the kernel calls."""
    proto, feeds, expected = combine(cases)
    library = build_proto(proto, target, folder)
    for actual, reference in zip(library(feeds).values(), expected, strict=True):
        assert actual.shape == reference.shape
        np.testing.assert_allclose(actual, reference, rtol=0, atol=1e-5)
    return manifest.read(folder / "library").kernel_calls


def layer(hidden: int, directions: int, n_cores: int) -> Subgraph:
    """Return the step of an LSTM of three steps."""
    constants = {
        "w": draw(directions, 4 * hidden, 8),
        "r": draw(directions, 4 * hidden, hidden, seed=1),
    }
    direction = "bidirectional" if directions > 1 else "forward"
    node = helper.make_node(
        *("LSTM", ["data", "w", "r"], ["y"]), hidden_size=hidden, direction=direction
    )
    proto = model([node], {"data": (3, 1, 8)}, {"y": (3, directions, 1, hidden)}, constants)
    module, _ = lower_proto(proto, spec_of(n_cores))
    (step,) = (each for each in find_subgraphs(module) if each.name.startswith("lstm_step"))
    return step


def test_a_bidirectional_layer_is_one_call(target: TargetInfo, tmp_path: Path) -> None:
    """No call of the network is a step, and none concatenates the states of the steps."""
    calls = check([_BOTH], target, tmp_path)

    loops = [call for call in calls if "loop" in call.kernel]
    assert [(call.n_outputs, call.n_runs > 1) for call in loops] == [(3, True)]
    assert len(calls) <= 3


@pytest.mark.slow("compiles and verifies the steps of a dozen layers")
def test_layers_agree(target: TargetInfo, tmp_path: Path) -> None:
    """All kinds of layers, with all optional inputs, agree with ONNX Runtime."""
    cases = [each for each in RECURRENT if each.name != "lstm_lengths"]
    unaligned = recurrent("wide", "GRU", optional="blh", direction="bidirectional", hidden=19)
    calls = check([*cases, unaligned], target, tmp_path)

    assert sum("loop" in call.kernel for call in calls) == len(cases) + 1


def test_lengths_end_sequences(target: TargetInfo, tmp_path: Path) -> None:
    """The reverse direction begins at the end of each sequence; states behind it are 0."""
    (case,) = (each for each in RECURRENT if each.name == "lstm_lengths")

    check([case], target, tmp_path)


def test_lengths_beyond_the_sequence_stay_inside(target: TargetInfo, tmp_path: Path) -> None:
    """A caller's length decides no address: it counts as that of the whole sequence."""
    node = helper.make_node(
        *("LSTM", ["data", "w", "r", "", "lengths"], ["y"]), hidden_size=8, direction="reverse"
    )
    weights = {"w": draw(1, 32, 5), "r": draw(1, 32, 8, seed=1)}
    made = model([node], {"data": (4, 2, 5)}, {"y": (4, 1, 2, 8)}, weights)
    made.graph.input.append(helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, [2]))
    library = build_proto(made, target, tmp_path)
    data = draw(4, 2, 5, seed=2)

    whole, beyond = (
        list(library(data=data, lengths=np.array([length, 2], np.int32)).values())
        for length in (4, 2**30)
    )

    np.testing.assert_array_equal(beyond, whole)


@pytest.mark.parametrize(
    ("hidden", "directions", "n_cores", "is_serial", "n_calls"),
    [
        (32, 2, 1, True, 6),
        (32, 1, 8, True, 3),
        (256, 2, 2, True, 3),
        (512, 2, 8, False, 6),
        (512, 1, 2, False, 3),
    ],
)
def test_threads_run_directions_or_steps(
    hidden: int, directions: int, n_cores: int, is_serial: bool, n_calls: int
) -> None:
    """Long steps share more cores than there are directions; calls count what follows in time."""
    step = layer(hidden, directions, n_cores)

    assert step_loops.is_step(step.module)
    assert (step_loops.is_serial(step.module), step.n_calls) == (is_serial, n_calls)


def test_a_serial_step_starts_no_threads() -> None:
    """Neither a schedule by rule, nor a trace from elsewhere, runs a serial step in parallel."""
    step, spec = layer(256, 2, 2).module, spec_of(2)
    target = make_target(spec)

    scheduled = traces.schedule_module(step, ranking.compute_trace(step, target), target)

    assert n_parallel(scheduled["main"]) == 1
    schedule = Schedule(step)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("product"))[1])
    with pytest.raises(WorkError, match="starts threads"):
        traces.schedule_module(step, traces.dump(schedule.trace), target)


def test_a_step_is_timed_after_another(target: TargetInfo, tmp_path: Path) -> None:
    """The weights of a step are where the step before left them, whatever the settings say."""
    module = layer(32, 1, 2).module
    trace = ranking.compute_trace(module, make_target(target.spec))
    request = BuildRequest(workloads.dump(module), target.spec, trace, str(tmp_path / "built"))
    artifact = worker.build(request).artifact
    settings = EvaluatorSettings(min_repeat_ms=0, network_bytes=2**40)

    result = worker.run(RunRequest(artifact, target.spec, (), settings))

    assert result.conditions is not None
    assert result.conditions["weights"] == "step before"


def test_no_weights_of_a_step_come_from_memory() -> None:
    """Its profile says so, because its roof would otherwise be too high."""
    (profile,) = worker.profile([workloads.dump(layer(32, 1, 2).module)])

    assert profile.weight_bytes == 0


def test_layers_of_constants_are_folded(target: TargetInfo, tmp_path: Path) -> None:
    """A layer that no input reaches has no loop: TVM would run it before its steps are linked."""
    (name, data), *_ = _BOTH.inputs.items()
    nodes = [*_BOTH.nodes, helper.make_node("Add", ["y0", "more"], ["z"])]
    more = draw(3, 2, 1, 5, seed=7)
    path = tmp_path / "model.onnx"
    onnx.save(model(nodes, {"more": more}, {"z": more}, {**_BOTH.weights, name: data}), path)
    file = ModelFile(str(path), "onnx", {"more": (more.shape, "float32")})
    module = lower(file, make_target(target.spec, intrinsics=False))

    (actual,) = run_module(module, file, {"more": more}, target.spec)

    np.testing.assert_allclose(actual, run(path.read_bytes(), {"more": more})[0], atol=1e-5)

"""Libraries of the engine relay are built with records, and loaded in a separate process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tuner
from tests.cli import Cli
from tests.environments import RELAY_PYTHON, ROOT, needs_relay
from tests.tuner.engines.relay.conftest import Array, draw
from tests.tuner.networks import models
from tuner.errors import RequestError, WorkError

pytestmark = [
    *needs_relay,
    pytest.mark.slow("compiles with TVM 0.19, in an environment of its own"),
]

_NAN, _INF = np.nan, np.inf
_ROWS = np.array(
    [[[[-_INF] * 3, [_NAN, 1, 2], [1, 2, _NAN], [3, 3, 3], [_INF, -_INF, 0], [-3e38, -1e38, 5]]]],
    np.float32,
)
_SHAPES = ("--input", "data=1,8,15,15", "--input", "data=2,8,15,15")


@dataclass(frozen=True)
class Built:
    """A model, the command line that built it, and its library."""

    cli: Cli
    model: Path
    folder: Path
    answer: dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    """The environment of Relay in the settings that loading reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_RELAY_PYTHON", str(RELAY_PYTHON))
        yield


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A convolution and a dense layer for two batch sizes, the first of them tuned briefly."""
    folder = tmp_path_factory.mktemp("library")
    save_model(folder / "model.onnx")
    settings = {"TUNER_ENGINE": "relay", "TUNER_RELAY_PYTHON": str(RELAY_PYTHON)}
    cli = Cli(folder, settings)
    tuned = cli("tune", "model.onnx", *_SHAPES[:2], "--trials", "8", "--json")
    assert tuned.status == 0, tuned.err
    answer = cli("build", "model.onnx", *_SHAPES, "-o", "model.lib", "--json")
    assert answer.status == 0, answer.err
    return Built(cli, folder / "model.onnx", folder / "model.lib", answer.json)


def save_model(path: Path) -> None:
    """Write a model with a dynamic batch, whose outputs differ from each other."""
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    model = models.model(
        nodes,
        {"data": ("n", 8, 15, 15)},
        {"y": ("n", 5)},
        {"w": draw(16, 8, 3, 3), "v": draw(16, 5)},
    )
    path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())


def expected(model: Path, data: Array) -> Array:
    """Return the outputs of ONNX Runtime."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    value: Array = session.run(None, {"data": data})[0]
    return value


def run_program(program: str, library: Path) -> list[str]:
    """Run a program on a library in a separate process, and return the words that it prints."""
    command = [sys.executable, "-c", program, str(library)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, cwd=ROOT
    )
    return done.stdout.split()


def test_a_library_describes_its_coverage(built: Built) -> None:
    """Kernels of the first shapes have records; those of the second are fallbacks."""
    subgraphs = built.answer["subgraphs"]
    manifest = json.loads((built.folder / "manifest.json").read_text())

    assert {each["record"] is not None for each in subgraphs} == {True, False}
    assert all(each["n_calls"] == 1 for each in subgraphs)
    assert manifest["engine"] == "tuner.engines.relay.worker"
    assert [program["entry"] for program in manifest["programs"]] == ["lib", "lib_1"]


@pytest.mark.parametrize("batch", [1, 2])
def test_outputs_are_those_of_onnx_runtime(built: Built, batch: int) -> None:
    """Tuned kernels, with weights in another layout, and untuned ones agree."""
    data = draw(batch, 8, 15, 15, seed=batch)

    outputs = tuner.load(built.folder)(data=data)

    (actual,) = outputs.values()
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected(built.model, data), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def special(built: Built) -> dict[str, Array]:
    """The outputs of operators on rows of NaN and infinities, by their names."""
    rows = {"x": _ROWS}
    nodes = [helper.make_node(name, ["x"], [name]) for name in ("Relu", "Sign")]
    nodes += [
        helper.make_node("MaxPool", ["x"], ["MaxPool"], kernel_shape=[2, 2]),
        helper.make_node("Clip", ["x", "low", "high"], ["Clip"]),
        helper.make_node("ReduceMax", ["x"], ["ReduceMax"], axes=[3], keepdims=0),
        helper.make_node("ArgMin", ["x"], ["ArgMin"], axis=3, keepdims=0, select_last_index=1),
        helper.make_node("ArgMax", ["x"], ["ArgMax"], axis=3, keepdims=0),
    ]
    names = [node.op_type for node in nodes]
    model = models.model(
        nodes,
        rows,
        dict.fromkeys(names),
        {"low": np.float32(-1), "high": np.float32(2)},
        kinds={name: TensorProto.INT64 for name in names if "Arg" in name},
    )
    onnx.save(model, built.cli.folder / "special.onnx")
    answer = built.cli("build", "special.onnx", "-o", "special.lib", "--json")
    assert answer.status == 0, answer.err
    return tuner.load(built.cli.folder / "special.lib")(rows)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Relu", np.maximum(_ROWS, 0)),
        ("Sign", np.sign(_ROWS)),
        ("Clip", np.clip(_ROWS, -1, 2)),
        ("MaxPool", np.max([_ROWS[..., i : i + 5, j : j + 2] for i in (0, 1) for j in (0, 1)], 0)),
        ("ReduceMax", _ROWS.max(3)),
        ("ArgMin", np.array([[[2, 0, 2, 2, 1, 0]]])),
        ("ArgMax", _ROWS.argmax(3)),
    ],
)
def test_special_values_stay(special: dict[str, Array], name: str, expected: Array) -> None:
    """NaN is in every extreme that it is part of, and extremes may be infinite."""
    assert np.array_equal(special[name], expected, equal_nan=True)


def test_a_loaded_library_is_called_again_and_again(built: Built) -> None:
    """Outputs of earlier calls stay unchanged."""
    network = tuner.load(built.folder)
    first, second = (draw(1, 8, 15, 15, seed=seed) for seed in (1, 2))

    (kept,) = network(data=first).values()
    before = kept.copy()
    network(data=second)

    assert np.array_equal(kept, before)
    assert network.inputs == {"data": ((1, 8, 15, 15), "float32")}


def test_wrong_inputs_are_refused(built: Built) -> None:
    """The message describes the expected inputs, as for any library."""
    network = tuner.load(built.folder)

    with pytest.raises(ValueError, match=r"'data' of shape .* is missing"):
        network()
    with pytest.raises(ValueError, match="unknown input 'x'"):
        network(data=draw(1, 8, 15, 15), x=draw(1))
    with pytest.raises(ValueError, match=r"inputs must be data \(1, 8, 15, 15\) float32; or"):
        network(data=draw(3, 8, 15, 15))
    with pytest.raises(ValueError, match="must be an array, got list"):
        network(data=[1.0])  # type: ignore[arg-type]


def test_a_call_after_its_process_was_killed_raises(built: Built) -> None:
    """The library can be loaded again."""
    from tuner.engines.relay.loading import Library

    network = Library(built.folder)
    network.process.kill()
    network.process.wait()

    with pytest.raises(WorkError, match="the process of the library has ended"):
        network(data=draw(1, 8, 15, 15))


def test_an_interrupted_call_does_not_answer_the_next(
    built: Built,
) -> None:
    """Its process ends, so that a late answer is not mistaken for outputs."""
    from tuner.engines.relay.loading import Library

    network = Library(built.folder)
    os.kill(network.process.pid or 0, signal.SIGSTOP)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            network(data=draw(1, 8, 15, 15))
    finally:
        signal.signal(signal.SIGALRM, before)

    with pytest.raises(WorkError, match="the process of the library has ended"):
        network(data=draw(1, 8, 15, 15))


def test_a_program_ends_with_a_loaded_library(built: Built) -> None:
    """The program does not wait for the process of the library."""
    program = (
        "import sys, tempfile; kept = tempfile.TemporaryDirectory(); import tuner\n"
        "library = tuner.load(sys.argv[1]); print(*library.outputs)"
    )

    assert run_program(program, built.folder) == ["y"]


def test_a_fork_that_drops_a_library_leaves_it_to_its_owner(built: Built) -> None:
    """A fork must not end the process of its parent."""
    program = (
        "import os, sys; import numpy, tuner\n"
        "library = tuner.load(sys.argv[1])\n"
        "if (forked := os.fork()) == 0:\n"
        "    library = None; os._exit(0)\n"
        "os.waitpid(forked, 0)\n"
        "print(*library(data=numpy.zeros((1, 8, 15, 15), 'float32')))"
    )

    assert run_program(program, built.folder) == ["y"]


def test_an_altered_library_is_not_loaded(built: Built, tmp_path: Path) -> None:
    """The process of the library detects the change."""
    for path in built.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "lib.weights").write_bytes(b"altered")

    with pytest.raises(RequestError, match="altered after it was built"):
        tuner.load(tmp_path)


def test_a_library_is_timed_by_its_own_engine(built: Built) -> None:
    """The manifest names the engine; outputs are compared with ONNX Runtime's."""
    answer = built.cli(
        "bench", "model.lib", "--model", "model.onnx", *_SHAPES[:2], "--against", "onnxruntime",
        "--json", TUNER_ENGINE="relax",
    )  # fmt: skip

    assert answer.status == 0, answer.err
    assert answer.json["agrees"]
    assert answer.json["library_secs"] > 0


def test_a_library_is_reproduced_by_the_engine_that_built_it(built: Built) -> None:
    """Its objects are records, and the rebuilt bytes are equal."""
    answer = built.cli("build", "--reproduce", "model.lib", "--json", TUNER_ENGINE="relax")

    assert answer.status == 0, answer.err
    assert answer.json["identical"]


def test_a_jitted_function_refuses_the_engine(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels cannot run in the process of the caller."""
    monkeypatch.setenv("TUNER_ENGINE", "relay")
    monkeypatch.setenv("TUNER_DATA_DIR", str(built.cli.data_dir))

    with pytest.raises(RequestError, match="do not run; unset TUNER_ENGINE"):
        tuner.jit(str(built.model))(data=draw(1, 8, 15, 15))

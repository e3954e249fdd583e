"""``tuner bench``: a library against runtimes that run the user's own file.

The toy engine's library runs the cleaned model, so that nothing is compiled here.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli import Answer, Cli
from tests.engines import toy
from tests.tuner.networks.models import LIGHT
from tuner.cli.commands.bench import Runtime
from tuner.compile.bench.bench_runtimes import ALL
from tuner.library import manifest
from tuner.library.arrays import write_arrays
from tuner.peers.catalogue import PEERS

_SHAPES = ("--input", "ids=1,6", "--input", "mask=1,6")
_TURN = ("--turns", "1", "--json")


def new_cli(folder: Path) -> Cli:
    """Return the command line with an engine that needs no compiler."""
    return Cli(folder, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """A command line with nothing built."""
    return new_cli(tmp_path)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A command line with a library of the zoo in ``out``."""
    return built(new_cli(tmp_path_factory.mktemp("mlp")), "zoo:mlp")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A command line with a library of ``text.onnx`` in ``out``; tests change neither."""
    cli = new_cli(tmp_path_factory.mktemp("text"))
    built_text(cli)
    return cli


def text_model(path: Path, scale: float = 1.0) -> str:
    """Write a model of token ids in a vocabulary of 50, with a mask and a dynamic length."""
    rng = np.random.default_rng(0)
    table = (rng.standard_normal((50, 4)) * scale).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["e"]),
            helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["m", "last"], ["n"]),
            helper.make_node("Mul", ["e", "n"], ["y"]),
        ],
        "text",
        [value(name, TensorProto.INT64, [1, "length"]) for name in ("ids", "mask")],
        [value("y", TensorProto.FLOAT, [1, "length", 4])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([2]), "last")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    onnx.save(model, path)
    return str(path)


def built(cli: Cli, *arguments: str) -> Cli:
    """Build a library into ``out``."""
    answer = cli("build", *arguments, "-o", "out")
    assert answer.status == 0, answer.err
    return cli


def built_text(cli: Cli) -> str:
    """Build the model of text into ``out`` and return its path."""
    path = text_model(cli.folder / "text.onnx")
    built(cli, path, *_SHAPES)
    return path


def refused(answer: Answer, *words: str) -> None:
    """Check that a request is refused in one line with these words."""
    assert (answer.status, answer.out) == (2, "")
    for word in words:
        assert word in answer.complaint, answer.err


def test_all_peers_are_one_table(mlp: Cli) -> None:
    """A row for each runtime, and the library's network is known: no model is given."""
    answer = mlp("bench", "out", "--against", "all", "--turns", "1")

    assert answer.status == 0, answer.err
    rows = [line.split()[0] for line in answer.out.splitlines()]
    assert rows[:4] == ["Runtime", "library", "onnxruntime", "openvino"]
    assert answer.out.count("agree, worst error") == 2
    assert "zoo:mlp, as generated" in answer.out


def test_json_has_what_the_table_has(mlp: Cli) -> None:
    """Medians, means, ratios and every output of every peer."""
    result = mlp("bench", "out", "--against", "all", *_TURN).json

    assert result["agrees"] is True
    assert result["device"] == "cpu"
    assert result["skipped"] == []
    for peer in result["peers"]:
        assert peer["ratio"] == pytest.approx(result["library_secs"] / peer["median_secs"])
        assert peer["mean_secs"] == pytest.approx(np.mean(peer["samples"]))
        assert peer["device"] == "cpu"
        assert [output["agrees"] for output in peer["outputs"]] == [True]


@pytest.mark.slow("builds and times a library for 10 s")
def test_token_ids_come_from_the_vocabulary(text: Cli) -> None:
    """Shapes come from the library; a mask is ones; the text model agrees with every peer."""
    result = text("bench", "out", "--model", "text.onnx", "--against", "all", *_TURN).json

    assert result["inputs"]["ids"]["values"].startswith("0 to 49 ")
    assert result["inputs"]["mask"]["values"].startswith("1 ")
    assert result["inputs"]["ids"]["shape"] == [1, 6]
    assert result["agrees"] is True
    assert len(result["peers"]) == 2


def test_difference_fails_and_is_named(text: Cli) -> None:
    """The exit status is 1; output, count and error are on the screen."""
    command = ("bench", "out", "--model", "text.onnx", "--turns", "1")

    answer = text(*command, TOY_OFFSET="0.5")

    assert answer.status == 1
    assert "output 'y' differs from onnxruntime: 24 of 24 elements" in answer.out
    assert "largest absolute error 0.5" in answer.out
    result = text(*command, "--json", TOY_OFFSET="0.5").json
    assert result["agrees"] is False
    assert result["peers"][0]["outputs"][0]["n_differing"] == 24


@pytest.mark.slow("builds and times a library for 10 s")
def test_infinity_of_the_peer_hides_nothing(cli: Cli) -> None:
    """The other elements are compared, although one is infinite on both sides."""
    path = text_model(cli.folder / "text.onnx")
    model = onnx.load(path)
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "table")
    array = numpy_helper.to_array(table).copy()
    array[:, 0] = np.inf
    table.CopyFrom(numpy_helper.from_array(array, "table"))
    onnx.save(model, path)
    built(cli, path, *_SHAPES)
    command = ("bench", "out", "--model", path, *_TURN)

    assert cli(*command).json["agrees"] is True
    answer = cli(*command, TOY_OFFSET="0.5")

    (output,) = answer.json["peers"][0]["outputs"]
    assert answer.status == 1
    assert (output["n_differing"], output["n_not_finite"]) == (18, 0)


@pytest.mark.slow("builds and times a library for 10 s")
def test_small_results_of_a_sigmoid_have_its_error(cli: Cli) -> None:
    """A peer rounds them as it rounds one; a library whose sigmoid is exact agrees."""
    path = text_model(cli.folder / "text.onnx", scale=0.1)
    model = onnx.load(path)
    model.graph.node[-1].output[0] = "scaled"
    shift = numpy_helper.from_array(np.float32(20.0), "shift")
    model.graph.initializer.append(shift)
    model.graph.node.append(helper.make_node("Sub", ["scaled", "shift"], ["logits"]))
    model.graph.node.append(helper.make_node("Sigmoid", ["logits"], ["y"]))
    onnx.save(model, path)
    built(cli, path, *_SHAPES)
    command = ("bench", "out", "--model", path, *_TURN)

    assert cli(*command, TOY_OFFSET="1e-7").json["agrees"] is True
    assert cli(*command, TOY_OFFSET="1e-6").json["agrees"] is False


@pytest.mark.slow("builds and times a library for 10 s")
def test_fault_of_cleaning_is_found(cli: Cli) -> None:
    """The peer runs the user's file: a wrong cleaned model cannot agree with itself."""
    path = built_text(cli)
    (cleaned,) = (cli.data_dir / "models").glob("*.onnx")
    wrong = onnx.load(cleaned)
    for tensor in wrong.graph.initializer:
        if tensor.name == "table":
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(array[::-1].copy(), "table"))
    cleaned.write_bytes(wrong.SerializeToString(deterministic=True))
    library = cli.folder / "out" / "lib.so"
    library.write_bytes(cleaned.read_bytes())
    described = manifest.read(library.parent)
    files = {**described.files, "lib.so": manifest.sha256_of(library)}
    raw = json.loads((library.parent / manifest.MANIFEST).read_text())
    (library.parent / manifest.MANIFEST).write_text(json.dumps({**raw, "files": files}))

    answer = cli("bench", "out", "--model", path, *_TURN)

    assert answer.status == 1, answer
    assert answer.json["agrees"] is False


@pytest.mark.slow("builds and times a library for 10 s")
def test_real_inputs(text: Cli) -> None:
    """Arrays of a file run in all runtimes; wrong ones are refused by name."""
    arrays = {"ids": np.arange(6)[None], "mask": np.array([[1, 1, 1, 1, 0, 0]])}
    write_arrays(text.folder / "real.npz", arrays)
    np.savez(text.folder / "half.npz", ids=arrays["ids"])
    command = ("bench", "out", "--model", "text.onnx", *_TURN, "--inputs")

    result = text(*command, "real.npz").json

    assert result["agrees"] is True
    assert result["inputs"]["mask"]["values"] == "real.npz"
    refused(text(*command, "half.npz"), "'mask'", "missing")
    refused(text(*command, "none.npz"), "none.npz", "No such file")


@pytest.mark.slow("builds and times a library for 10 s")
def test_model_must_be_that_of_the_library(text: Cli) -> None:
    """The name and the hash of the right file are in the message."""
    recorded = manifest.read(text.folder / "out").source
    assert recorded is not None
    other = text_model(text.folder / "other.onnx", scale=2.0)

    answer = text("bench", "out", "--model", other, *_TURN)

    refused(answer, "another network", "text.onnx", recorded.sha256[:12])
    refused(text("bench", "out", "--model", "zoo:mlp", *_TURN), "another network", "text.onnx")


@pytest.mark.slow("builds and times a library for 10 s")
def test_equal_file_of_another_name_is_the_model(text: Cli) -> None:
    """A copy, and a file that only differs in what cleaning removes."""
    model = onnx.load(text.folder / "text.onnx")
    model.producer_name = "another exporter"
    onnx.save(model, text.folder / "copy.onnx")

    assert text("bench", "out", "--model", "copy.onnx", *_TURN).json["agrees"] is True


@pytest.mark.slow("15 s: a network of megabytes is loaded four times")
def test_random_weights_are_those_of_the_library(cli: Cli) -> None:
    """The peer gets them without being told; another seed is refused."""
    path = str(LIGHT / "light_squeezenet.onnx")
    built(cli, path, "--random-weights", "3")

    result = cli("bench", "out", "--model", path, *_TURN).json

    assert result["agrees"] is True
    assert result["degenerate"] is False
    assert "random weights of seed 3" in result["model"]
    answer = cli("bench", "out", "--model", path, "--random-weights", "4", *_TURN)
    refused(answer, "random weights of seed 3, not random weights of seed 4")


def test_peers_run_their_formats_only(text: Cli) -> None:
    """A model of ONNX is not for torch, and a file is needed where none is known."""
    refused(
        text("bench", "out", "--model", "text.onnx", "--against", "torch"), "--against", "openvino"
    )
    refused(text("bench", "out", "--against", "all"), "--model", "text.onnx")


def test_no_peer_is_needed_to_time(text: Cli) -> None:
    """Without a model and without --against, the library alone is timed."""
    result = text("bench", "out", *_TURN).json

    assert result["peers"] == []
    assert result["library_secs"] > 0
    assert result["inputs"]["ids"]["values"] == "0 or 1"


def test_every_peer_is_an_option() -> None:
    """The names of ``--against`` are those of the catalogue, and ``all``."""
    assert {name.value for name in Runtime} == {*(peer.name for peer in PEERS), ALL}

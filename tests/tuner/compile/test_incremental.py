"""Incremental builds with the relax engine: only new objects are compiled."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from sqlalchemy import delete

import tuner
from records.models import BestRecord
from tests.cli import Cli, finish
from tests.engines.toy_network import open_sessions
from tests.tuner.networks.models import difference, model, run
from tests.tuner.networks.onnx.folding.test_fixed_values import rated
from tuner.library import manifest

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
    pytest.mark.slow("tunes and builds with the real engine for a minute"),
]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A perceptron that is tuned with one trial per task and built."""
    cli = Cli(tmp_path_factory.mktemp("incremental"))
    options = ("--trials", "4", "--trials-per-round", "1", "--cost-model", "random")
    assert cli("tune", "zoo:mlp", *options).status == 0
    answer = cli("build", "zoo:mlp", "-o", "mlp.lib", "--strict", "--json")
    assert answer.status == 0, answer.err
    assert (answer.json["hits"], answer.json["misses"]) == (0, 4)
    return cli


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    """A model of two branches: one with a dynamic number of rows, one with two."""
    rng = np.random.default_rng(0)
    made = model(
        [
            helper.make_node("MatMul", ["rows", "first"], ["product"]),
            helper.make_node("Relu", ["product"], ["out"]),
            helper.make_node("MatMul", ["pair", "second"], ["other"]),
            helper.make_node("Sigmoid", ["other"], ["side"]),
        ],
        {"rows": ("n", 64), "pair": (2, 64)},
        {"out": ("n", 48), "side": (2, 32)},
        {
            "first": rng.standard_normal((64, 48), dtype=np.float32),
            "second": rng.standard_normal((64, 32), dtype=np.float32),
        },
    )
    path = tmp_path / "dynamic.onnx"
    onnx.save(made, path)
    return path


def test_only_changed_layers_are_compiled(tuned: Cli) -> None:
    """The last two layers have another size; the others are cache hits."""
    answer = tuned("build", "zoo:mlp?classes=11", "-o", "eleven.lib")

    assert answer.status == 0, answer.err
    assert answer.err.count("Cache hit: ") == 2
    assert answer.err.count("Compiled in ") == 2
    assert "2 cache hits, 2 compiled" in answer.out


def test_better_record_compiles_one_subgraph(tuned: Cli) -> None:
    """The trace explains the miss, and the output stays equal."""
    with open_sessions(tuned.url).begin() as session:
        (task_id,) = session.scalars(
            delete(BestRecord)
            .where(BestRecord.task_id == 1)
            .returning(BestRecord.__table__.c.task_id)
        )
    assert task_id == 1

    built = tuned("build", "zoo:mlp", "-o", "other.lib", "--explain", "--json").json

    assert (built["hits"], built["misses"], built["cached"]) == (3, 1, False)
    (miss,) = [step for step in built["steps"] if not step["hit"]]
    (part,) = miss["why"]["differs"]
    assert (part["part"], part["ours"]) == ("trace", None)
    before = manifest.read(tuned.folder / "mlp.lib")
    data = np.random.default_rng(1).random((1, 1, 28, 28), dtype=np.float32)
    (expected,) = tuner.load(tuned.folder / "mlp.lib")(data=data).values()
    (actual,) = tuner.load(tuned.folder / "other.lib")(data=data).values()
    assert difference(actual, expected) < 1e-5
    assert miss["workload"] in {entry.workload for entry in before.subgraphs if entry.record}


def test_a_new_subgraph_is_explained_in_words(tuned: Cli) -> None:
    """The line names the nearest subgraph of the cache."""
    answer = tuned("build", "zoo:mlp?classes=13", "-o", "thirteen.lib", "--explain")

    assert "this subgraph was never compiled before; the nearest is" in answer.err


def test_several_shapes_are_one_library(tuned: Cli, dynamic: Path) -> None:
    """Each shape has a program, and the programs share weights and objects."""
    options = ("--input", "rows=1,64", "--input", "rows=5,64", "-o", "dynamic.lib", "--json")

    answer = tuned("build", str(dynamic), *options)

    assert answer.status == 0, answer.err
    built = answer.json
    assert [program["inputs"]["rows"][0] for program in built["programs"]] == [[1, 64], [5, 64]]
    assert built["misses"] == len(built["subgraphs"]) == 3
    library = tuner.load(tuned.folder / "dynamic.lib")
    weights = manifest.read(tuned.folder / "dynamic.lib").weights
    # The products of one row and of five take the first weight in two shapes.
    assert len({weight.offset for weight in weights}) == 2
    rng = np.random.default_rng(2)
    pair = rng.random((2, 64), dtype=np.float32)
    for n_rows in (5, 1, 5):
        rows = rng.random((n_rows, 64), dtype=np.float32)
        outputs = library(rows=rows, pair=pair)
        for actual, expected in zip(
            outputs.values(), run(dynamic.read_bytes(), {"rows": rows, "pair": pair}), strict=True
        ):
            assert difference(actual, expected) < 1e-5
    with pytest.raises(ValueError, match=r"input 'rows' must have shape \(1, 64\).* or shape"):
        library(rows=rng.random((2, 64), dtype=np.float32), pair=pair)

    more = ("--input", "rows=1,64", "--input", "rows=5,64", "--input", "rows=9,64")
    again = tuned("build", str(dynamic), *more, "-o", "more.lib", "--json").json
    assert (again["hits"], again["misses"], len(again["programs"])) == (3, 1, 3)


def test_values_for_the_same_shapes_need_a_library_each(tuned: Cli, tmp_path: Path) -> None:
    """The library would not know which one to run."""
    onnx.save(rated((1,)), tmp_path / "rated.onnx")
    options = ("--input", "rate=16", "--input", "rate=8", "-o", "rated.lib")

    answer = tuned("build", str(tmp_path / "rated.onnx"), *options)

    assert answer.status == 2
    assert "alone; build a library for each value [input-shape]" in answer.complaint


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--input", "rows=1,64", "--input", "rows=1,64"), "the same input shapes are given twice"),
        (
            ("--input", "rows=1,64", "--input", "rows=2,64", "--input", "pair=2,64"),
            "name the same inputs in every set",
        ),
    ],
    ids=["twice", "uneven"],
)
def test_wrong_sets_of_shapes_are_rejected(
    tuned: Cli, dynamic: Path, options: tuple[str, ...], complaint: str
) -> None:
    """No library is written."""
    answer = tuned("build", str(dynamic), *options, "-o", "rejected.lib")

    assert answer.status == 2
    assert complaint in answer.complaint
    assert not (tuned.folder / "rejected.lib").exists()


def entries_of(cli: Cli, kind: str) -> Iterator[Path]:
    """Return the files of all entries of a kind."""
    return (path for path in (cli.data_dir / "cache").glob(f"*/{kind}/*/*") if path.is_file())


def test_damaged_object_is_compiled_again(tuned: Cli) -> None:
    """A warning names it, and the library is the same."""
    built = tuned("build", "zoo:mlp?classes=14", "-o", "whole.lib", "--json").json
    damaged = built["subgraphs"][0]["entry"]
    for path in [*entries_of(tuned, "library"), *entries_of(tuned, "subgraph")]:
        if path.name == damaged or path.parent.parent.name == "library":
            path.write_bytes(path.read_bytes()[:-7])

    answer = tuned("build", "zoo:mlp?classes=14", "-o", "again.lib", "--json")

    assert answer.status == 0, answer.err
    assert "damaged" in answer.err
    assert (answer.json["hits"], answer.json["misses"]) == (3, 1)
    first, again = (manifest.read(tuned.folder / name) for name in ("whole.lib", "again.lib"))
    assert first.subgraphs == again.subgraphs


def test_concurrent_builds_compile_each_object_once(tuned: Cli) -> None:
    """Three processes build networks that share subgraphs."""
    names = ["zoo:mlp?batch=3", "zoo:mlp?batch=3", "zoo:mlp?batch=3&classes=21"]
    running = [
        tuned.start("build", name, "-o", f"{number}.lib", "--json")
        for number, name in enumerate(names)
    ]
    answers = [finish(process) for process in running]

    assert [answer.status for answer in answers] == [0, 0, 0], answers
    built = [answer.json for answer in answers]
    compiled = [step["workload"] for row in built for step in row["steps"] if not step["hit"]]
    workloads = {entry["workload"] for row in built for entry in row["subgraphs"]}
    assert sorted(compiled) == sorted(workloads)
    assert sum(row["cached"] for row in built) == 1

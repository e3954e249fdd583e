"""``--bucket``: one job and one library for several sizes of a dynamic dimension.

The toy engine's library runs the cleaned model of its first program, so that nothing is compiled.
"""

from pathlib import Path

import pytest

from tests.cli import Answer, Cli
from tests.tuner.cli.commands.test_bench import new_cli, text_model


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A command line with a model of a dynamic length, ``text.onnx``."""
    made = new_cli(tmp_path_factory.mktemp("buckets"))
    text_model(made.folder / "text.onnx")
    return made


def test_a_job_tunes_all_sizes_with_their_weights(cli: Cli) -> None:
    """Both programs are networks of the job, and the padding was tried before."""
    answer = cli("tune", "text.onnx", "--bucket", "length=6,12:3", "--trials", "8", "--json")

    assert answer.status == 0, answer.err
    assert answer.json["network"] == "text@length=6 + text@length=12"
    assert "length: 1 to 12, padded to 6 or 12" in answer.err
    heavy = next(task for task in answer.json["tasks"] if task["name"].startswith("heavy"))
    # Three calls in each of two programs.
    assert heavy["weight"] == 6

    refused = cli("tune", "text.onnx", "-b", "length=6,12:3", "--objective", "geometric_mean")
    assert refused.status == 2
    assert "--bucket: weights of sizes belong to weighted_sum" in refused.complaint


def test_a_library_takes_any_size_up_to_the_largest(cli: Cli) -> None:
    """The library runs padded, ONNX Runtime runs the user's own file at the very size."""
    built = cli("build", "text.onnx", "--bucket", "length=6", "-o", "out", "--json")
    assert built.status == 0, built.err
    (dimension,) = built.json["buckets"]["dimensions"]
    assert (dimension["sizes"], dimension["problem"]) == ([6], "")
    assert dimension["outputs"] == {"y": [1]}

    bench = ("bench", "out", "--model", "text.onnx", "--turns", "1")
    fit = cli(*bench, "--input", "ids=1,4", "--json")
    assert fit.json["agrees"] is True
    assert fit.json["inputs"]["mask"]["shape"] == [1, 4]
    assert fit.json["peers"][0]["outputs"][0]["n_elements"] == 4 * 4

    beyond = cli(*bench, "--input", "ids=1,7")
    assert beyond.status == 2
    assert "'length' is 7, beyond the largest bucket; the buckets are 6" in beyond.complaint


def complaint_of(answer: Answer) -> str:
    """Return the only line of a refused request."""
    assert (answer.status, answer.out) == (2, "")
    return answer.complaint


def test_wrong_buckets_are_refused(cli: Cli, tmp_path: Path) -> None:
    """The error names the option, and the dimensions that the model has."""
    build = ("build", "text.onnx", "-o", str(tmp_path / "no"))

    assert "--bucket: 'length' has no sizes" in complaint_of(cli(*build, "--bucket", "length="))
    unknown = complaint_of(cli(*build, "--bucket", "rows=2"))
    assert "no dynamic dimension 'rows'; its dynamic dimensions are 'length'" in unknown
    mask = complaint_of(cli(*build, "--bucket", "length=6", "--mask", "nothing"))
    assert "--mask: the model has no input 'nothing'; its inputs are ids, mask" in mask
    zoo = ("build", "zoo:mlp", "-o", str(tmp_path / "no"), "--bucket", "auto")
    assert "the shapes of the model are fixed" in complaint_of(cli(*zoo))
    sets = cli(*build, "-b", "auto", "-i", "ids=1,4", "-i", "ids=1,5")
    assert "give one shape per input, or leave the buckets out" in complaint_of(sets)
    assert not (tmp_path / "no").exists()

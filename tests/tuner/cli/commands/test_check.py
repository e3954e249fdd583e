"""``tuner check``: its exit status, its reports, and requests that it refuses."""

from xml.etree import ElementTree as ET

import pytest

from tests.engines import toy
from tests.tuner.cli.commands.conftest import Shell


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A command line with an untuned library in ``out``; its engine needs no compiler."""
    folder = tmp_path_factory.mktemp("check")
    cli = Shell(folder, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})
    assert cli("build", "zoo:mlp", "-o", "out").status == 0
    return cli


def test_an_untuned_library_is_status_3(cli: Shell) -> None:
    """Every untuned subgraph is listed, with a command that can be run as it is printed."""
    answer = cli("check", "out")

    assert answer.status == 3
    untuned = cli("check", "out", "--json").json["untuned"]
    assert len(untuned) > 1
    assert all(entry["workload"][:16] in answer.out for entry in untuned)
    hint = answer.out.rpartition("`tuner ")[2].partition("`")[0]
    assert cli(*hint.split(), "--trials", "1").status == 0
    assert cli("check", "out", "--min-coverage", "0%").status == 0


def test_a_model_is_built_with_the_best_records(cli: Shell) -> None:
    """Coverage rises with the budget; nothing is left of the library."""
    assert cli("tune", "zoo:mlp", "--trials", "30").status == 0

    result = cli("check", "zoo:mlp", "--min-coverage", "100%", "--json")

    assert (result.status, result.json["untuned"]) == (0, [])
    assert result.json["findings"][0]["value"] == 1.0


@pytest.mark.parametrize(("max_ms", "status"), [("1e9", 0), ("1e-9", 4)])
def test_a_library_that_is_too_slow_is_status_4(cli: Shell, max_ms: str, status: int) -> None:
    """Reports have what the screen has."""
    reports = ("--junit", "check.xml", "--markdown", "check.md")
    command = ("check", "out", "--min-coverage", "0", "--turns", "8", "--max-ms", max_ms)
    (cli.folder / "check.md").write_text("# Build\n")

    answer = cli(*command, *reports)

    assert answer.status == status, answer.err
    assert all(word in answer.out for word in ("p99 (ms)", "Runs/s", "latency"))
    suite = ET.parse(cli.folder / "check.xml").getroot()
    assert [case.get("name") for case in suite] == ["coverage", "latency"]
    assert suite.get("failures") == str(int(status == 4))
    text = (cli.folder / "check.md").read_text()
    assert text.startswith("# Build\n### mlp")
    assert "| latency |" in text


def test_a_baseline_takes_turns(cli: Shell) -> None:
    """Both have as many turns; the outcome is one of three."""
    command = ("check", "out", "--min-coverage", "0", "--turns", "8", "--baseline", "out", "--json")

    answer = cli(*command)

    assert answer.status in (0, 4, 5)
    assert [timing["name"] for timing in answer.json["timings"]] == ["library", "baseline"]
    assert answer.json["findings"][1]["name"] == "slowdown"
    assert answer.json["exit_status"] == answer.status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("out", "--turns", "7"), ("--turns", "at least 8")),
        (("out", "--max-ms", "0"), ("--max-ms", "above 0")),
        (("out", "--min-coverage", "130%"), ("--min-coverage", "130%")),
        (("out", "--max-slowdown", "little"), ("--max-slowdown", "'little'")),
        (("out", "--baseline", "missing"), ("missing", "not a library")),
        (("missing.onnx",), ("no such file", "missing.onnx")),
        (("missing.lib",), ("missing.lib is not a library",)),
    ],
)
def test_wrong_requests(cli: Shell, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    """They are refused in a line, with status 2."""
    answer = cli("check", *arguments)

    assert (answer.status, answer.out) == (2, "")
    assert all(word in answer.complaint for word in words), answer.err

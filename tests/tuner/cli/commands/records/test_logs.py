"""``tuner records import``, ``export`` and ``distill`` of logs, without a compiler."""

import gzip
import json
from pathlib import Path

import pytest

from tests.tuner.cli.commands.conftest import Shell
from tests.tuner.tuning_logs import make
from tuner.tuning_logs.metaschedule import RECORDS, WORKLOADS


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["import", "x", "--format", "csv"], "--format must be one of auto, tuner, metaschedule"),
        (["export", "x", "--format", "auto"], "--format must be one of tuner, t4, metaschedule"),
        (["distill", "x", "-o", "y", "--format", "csv"], "--format must be one of auto, tuner"),
        (["export", "x", "--top", "1"], "--top needs --format metaschedule or ansor"),
        (["export", "-", "--format", "metaschedule"], "a MetaSchedule database is two files"),
        (["export", "data/tuner.db", "--format", "metaschedule"], "cannot write data/tuner.db: "),
        (["distill", "no.json", "-o", "y"], "cannot read no.json: No such file"),
        (["distill", "data", "-o", "y"], "cannot read data: Is a directory"),
        (["distill", "data/tuner.db", "-o", "y"], "line 1: "),
        (["distill", "x", "-o", "-", "--json"], "--json cannot be used with -"),
        (["import", "half"], "a MetaSchedule database has two files"),
    ],
)
def test_a_wrong_request_is_one_line(tuned: Shell, args: list[str], message: str) -> None:
    """It ends with status 2, prints nothing on stdout and leaves no file."""
    (tuned.folder / "half").mkdir()
    (tuned.folder / "half" / RECORDS).write_text(make.metaschedule() + "\n")

    answer = tuned("records", *args)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"tuner: {message}")
    assert answer.err.count("\n") == 1
    assert not (tuned.folder / "y").exists()


@pytest.mark.parametrize("command", ["import", "export"])
def test_logs_of_other_tools_are_handled_locally(tuned: Shell, command: str) -> None:
    """They need a compiler, so ``--server`` is rejected."""
    (tuned.folder / "log.json").write_text(make.ansor(1.0) + "\n")

    answer = tuned(
        *("--server", "http://127.0.0.1:9", "records", command, "log.json"),
        *("--format", "ansor"),
    )

    assert answer.status == 2
    assert f"`tuner records {command} --format ansor` works on this machine alone" in answer.err


def test_a_compressed_log_is_imported(tuned: Shell, tmp_path: Path) -> None:
    """A compressed log that is cut off imports nothing."""
    text = tuned("records", "export", "-").out.encode()
    other = Shell(tmp_path / "other")
    other.folder.mkdir()
    (other.folder / "log.gz").write_bytes(gzip.compress(text))
    (other.folder / "cut.gz").write_bytes(gzip.compress(text)[:-9])

    cut = other("records", "import", "cut.gz")
    whole = other("records", "import", "log.gz", "--json")

    assert cut.status == 2
    assert cut.err.endswith("; nothing was imported\n")
    counts = {"added": 4, "known": 0, "torn": 0, "refused": 0}
    assert whole.json == {"file": "log.gz", "refusals": [], **counts}


def test_a_log_of_the_tuner_is_distilled_to_its_best_records(tuned: Shell, tmp_path: Path) -> None:
    """Another database that imports the result has the same best records and no others."""
    tuned("records", "export", "all.jsonl")

    answer = tuned("records", "distill", "all.jsonl", "-o", "best.jsonl")
    other = Shell(tmp_path / "other")
    other.folder.mkdir()
    best = str(tuned.folder / "best.jsonl")
    added = other("records", "import", best, "--trust", "--json").json["added"]

    assert answer.status == 0
    assert answer.out.startswith("kept 2 records of 2 tasks, all.jsonl -> best.jsonl\n")
    assert "left out 1 line," in answer.out
    assert added == 2
    first_bests, second_bests = (
        [
            (row["workload"], row["latency_secs"])
            for row in database("records", "best", "--json").json["records"]
        ]
        for database in (tuned, other)
    )
    assert first_bests == second_bests


def test_a_distilled_log_goes_through_a_pipe(tuned: Shell) -> None:
    """Stdout holds the log alone."""
    lines = [make.ansor(2.0), make.ansor(1.0), make.ansor(0.0, error=7)]

    answer = tuned("records", "distill", "-", "-o", "-", stdin="\n".join(lines))

    assert answer.out == lines[1] + "\n"
    assert "kept 1 record of 1 task, - -> -" in answer.err


def test_a_metaschedule_database_is_distilled(tuned: Shell) -> None:
    """The file of workloads is copied unchanged."""
    folder = tuned.folder / "db"
    folder.mkdir()
    (folder / WORKLOADS).write_text('["1","aGk="]\n')
    (folder / RECORDS).write_text(f"{make.metaschedule((2.0,))}\n{make.metaschedule((1.0,))}\n")

    answer = tuned("records", "distill", f"db/{WORKLOADS}", "-o", "small", "--json")

    small = tuned.folder / "small"
    assert answer.json["format"] == "metaschedule"
    assert (answer.json["records"], answer.json["skipped"]) == (1, [])
    assert (small / WORKLOADS).read_text() == '["1","aGk="]\n'
    assert json.loads((small / RECORDS).read_text())[1][1] == [1.0]

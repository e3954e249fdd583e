"""``tuner records``: listing, exporting and importing records."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from records.logs.log_lines import VERSION
from tests.tuner.cli.commands.conftest import Shell

Write = Callable[[Callable[[Any], Any]], None]


def shell_in(folder: Path) -> Shell:
    """Return a shell with a data directory of its own."""
    folder.mkdir()
    return Shell(folder)


# No workload of a log of this version has a false name.
NONE_REFUSED = {"refused": 0, "refusals": []}


@pytest.fixture
def log(tuned: Shell) -> Path:
    """The exported records of ``tuned``."""
    path = tuned.folder / "measured.jsonl"
    assert tuned("records", "export", str(path)).status == 0
    return path


def test_best_lists_one_record_per_task(tuned: Shell) -> None:
    """It is the fastest verified record of the task."""
    records = tuned("records", "best", "--json").json["records"]

    assert [(row["record"], row["latency_secs"], row["confirmed"]) for row in records] == [
        (2, 2e-3, True),
        (3, 1e-3, False),
    ]
    assert records[0]["gflops"] == pytest.approx(1000.0)
    assert records[0]["device"] == "CPU A"


def test_records_are_exported_as_t4(tuned: Shell) -> None:
    """One document has every record, also the failed one, with times in milliseconds."""
    answer = tuned("records", "export", "--format", "t4", "-")
    document = json.loads(answer.out)
    first, *_, failed = document["results"]

    assert (document["schema_version"], len(document["results"])) == ("1.0.0", 4)
    assert (first["invalidity"], first["correctness"]) == ("correct", 1)
    assert (first["times"], first["measurements"][0]["value"]) == ({"runtimes": [3.0, 3.0]}, 3.0)
    assert first["configuration"]["name"] == "dense_small_0"
    assert first["configuration"]["target"]["mcpu"] == "znver4"
    assert (failed["invalidity"], failed["times"]) == ("compile", {"runtimes": []})
    assert "measurements" not in failed
    assert tuned("records", "import", "x", "--format", "t4").status == 2


@pytest.mark.parametrize(
    ("args", "records"),
    [
        (["--job", "1"], [2, 3]),
        (["--job", "2"], []),
        (["--workload", "01" * 8], [3]),
        (["--workload", "0101"], [3]),
        (["--name", "SMALL_0"], [2]),
        (["--name", "small", "--workload", "0101"], [3]),
        (["--name", "softmax"], []),
        (["--job", "2", "--workload", "01" * 8], []),
    ],
)
def test_best_is_narrowed_by_job_and_workload(
    tuned: Shell, args: list[str], records: list[int]
) -> None:
    """No match is an empty list, not an error."""
    answer = tuned("records", "best", *args, "--json")

    assert answer.status == 0
    assert [row["record"] for row in answer.json["records"]] == records


def test_a_record_is_shown_with_where_it_comes_from(tuned: Shell) -> None:
    """It names its job, its samples, those of the finals and its hashes in full, or its error."""
    best, failed = tuned("records", "show", "2").out, tuned("records", "show", "4")
    as_json = tuned("records", "show", "2", "--json").json

    for line in ("verified, best of its task", "job        1, pick", f"workload   {'00' * 8}"):
        assert line in best
    assert (failed.status, "record     4, failed, " in failed.out) == (0, True)
    assert (as_json["record"], as_json["is_best"], as_json["job"]) == (2, True, 1)
    assert (as_json["final_secs"], as_json["code"]) == (2e-3, {})


def test_best_names_its_targets(tuned: Shell) -> None:
    """Targets are described below the table."""
    shown = tuned("records", "best").out

    assert 'target 1: CPU A, {"kind":"llvm","mcpu":"znver4"}' in shown
    assert "2 best records" in shown


@pytest.mark.parametrize(
    ("args", "records"),
    [
        ([], [4, 3, 2, 1]),
        (["--limit", "2"], [4, 3]),
        (["--failed"], [4]),
        (["--task", "1"], [2, 1]),
        (["--workload", "00" * 8], [2, 1]),
        (["--workload", "00000"], [2, 1]),
        (["--task", "1", "--failed"], []),
    ],
)
def test_list_is_newest_first(tuned: Shell, args: list[str], records: list[int]) -> None:
    """Filters can be combined."""
    answer = tuned("records", "list", *args, "--json")

    assert answer.status == 0
    assert [row["record"] for row in answer.json["records"]] == records


def test_list_shows_samples_or_error(tuned: Shell) -> None:
    """Output of a compiler is plain text, without its colours and markup."""
    shown = tuned("records", "list").out

    assert "1.0000 1.1000 0.9000" in shown
    assert "build_error: no [/bold] such" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["best", "--workload", "zz"], "no workload 'zz'; `tuner tasks MODEL` lists the hashes"),
        (["best", "--workload", "0"], "workloads 0000000000000000 and 0101010101010101 begin with"),
        (["show", "99"], "no record 99; `tuner records list` shows the numbers"),
        (["best", "--job", "7"], "no job 7; known jobs: 2 (big, running), 1 (small, done)"),
        (["list", "--task", "7"], "no task 7; `tuner records list` shows the numbers"),
        (["export", "x", "--target-id", "7"], "no target 7; known targets: 1 (CPU A); 2 (CPU B)"),
        (["export", "-", "--json"], "--json cannot be used with -: both print on stdout"),
        (["export", "no/x"], "cannot write no/x: No such file or directory"),
        (["export", "."], "cannot write .: Is a directory"),
        (["export", "data/tuner.db/x"], "cannot write data/tuner.db/x: Not a directory"),
        (["export", "loop"], "cannot write loop: "),
        (["export", "x" * 300], f"cannot write {'x' * 300}: File name too long"),
        (["import", "no.jsonl"], "cannot read no.jsonl: No such file or directory"),
        (["import", "data"], "cannot read data: Is a directory"),
    ],
)
def test_a_wrong_request_is_one_line(tuned: Shell, args: list[str], message: str) -> None:
    """It ends with status 2, prints nothing on stdout and leaves no file."""
    (tuned.folder / "loop").symlink_to("loop")
    before = set(tuned.folder.iterdir())

    answer = tuned("records", *args)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"tuner: {message}")
    assert answer.err.count("\n") == 1
    assert {path.name for path in tuned.folder.iterdir()} - {p.name for p in before} <= {
        "config.toml"
    }


@pytest.mark.parametrize("args", [["--limit", "0"], ["--task", "0"], ["--task", "9" * 30]])
def test_a_number_out_of_range_is_rejected(tuned: Shell, args: list[str]) -> None:
    """It never reaches the database."""
    answer = tuned("records", "list", *args)

    assert (answer.status, answer.out) == (2, "")


def test_exported_records_are_imported_completely(tuned: Shell, log: Path, tmp_path: Path) -> None:
    """Another database then exports the same log and has the same best records."""
    other = shell_in(tmp_path / "other")

    first = other("records", "import", str(log), "--trust", "--json")
    again = other("records", "import", str(log), "--trust")

    assert first.json == {"file": str(log), "added": 4, "known": 0, "torn": 0, **NONE_REFUSED}
    assert again.out == f"imported {log}: 0 records added, 4 known\n"
    assert other("records", "export", "-").out == log.read_text()
    first_bests, second_bests = (
        [
            (row["workload"], row["latency_secs"], row["confirmed"])
            for row in database("records", "best", "--json").json["records"]
        ]
        for database in (tuned, other)
    )
    assert first_bests == second_bests


def test_an_import_is_a_claim_unless_it_is_trusted(log: Path, tmp_path: Path) -> None:
    """Imported records are listed, and none of them is a best record."""
    other = shell_in(tmp_path / "other")

    answer = other("records", "import", str(log))

    assert "4 records added" in answer.out
    assert "`tuner records verify`" in answer.err
    assert len(other("records", "list", "--json").json["records"]) == 4
    assert other("records", "best", "--json").json["records"] == []


def test_a_log_goes_through_a_pipe(tuned: Shell, tmp_path: Path) -> None:
    """A dash names stdout and stdin; stdout holds the log alone."""
    out = tuned("records", "export", "-")
    other = shell_in(tmp_path / "other")

    answer = other("records", "import", "-", "--json", stdin=out.out)

    assert answer.json == {"file": "-", "added": 4, "known": 0, "torn": 0, **NONE_REFUSED}
    assert out.err == "exported 4 records to -\n"
    assert all(isinstance(json.loads(line), dict) for line in out.out.splitlines())


def test_an_export_is_limited_to_one_target(tuned: Shell) -> None:
    """It has no record of another target."""
    answer = tuned("records", "export", "b.jsonl", "--target-id", "2", "--json")

    assert answer.json == {"file": "b.jsonl", "records": 1}
    assert "CPU A" not in (tuned.folder / "b.jsonl").read_text()


def test_a_torn_log_is_imported_without_its_last_line(log: Path, tmp_path: Path) -> None:
    """The line that is cut off is reported."""
    log.write_text(log.read_text()[:-20])

    answer = shell_in(tmp_path / "other")("records", "import", str(log))

    assert answer.status == 0
    assert "3 records added, 0 known, the torn last line was left out" in answer.out


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [*lines[:-2], "{}", lines[-1]], r"line 9: unknown kind None"),
        (lambda _: ["hello"], r"line 1: not a log of subgraph-tuner records"),
        (lambda _: [], r"line 1: the file is empty"),
        (
            lambda lines: [lines[0].replace(f":{VERSION}", ":99")],
            r"line 1: this subgraph-tuner reads logs of version 1, not 99",
        ),
    ],
)
def test_a_damaged_log_imports_nothing(
    log: Path, tmp_path: Path, damage: Callable[[list[str]], list[str]], message: str
) -> None:
    """The error names the line; records before it are rolled back."""
    lines = damage(log.read_text().splitlines())
    log.write_text("".join(f"{line}\n" for line in lines))
    other = shell_in(tmp_path / "other")

    answer = other("records", "import", str(log))

    assert answer.status == 2
    assert answer.err.startswith(f"tuner: cannot import {log}: {message}")
    assert answer.err.endswith("; nothing was imported\n")
    assert answer.err.count("\n") == 1
    assert other("records", "list", "--json").json == {"records": []}


def test_a_binary_file_is_rejected(tuned: Shell) -> None:
    """An SQLite database is not a log."""
    answer = tuned("records", "import", "data/tuner.db")

    assert answer.status == 2
    assert answer.err.startswith("tuner: cannot import data/tuner.db: line 1: ")


def test_an_export_replaces_a_file_atomically(tuned: Shell, log: Path) -> None:
    """A link stays a link, and no temporary file is left."""
    whole = log.read_text()
    log.write_text("old")
    link = tuned.folder / "link.jsonl"
    link.symlink_to(log)

    assert tuned("records", "export", str(link)).status == 0

    assert link.is_symlink()
    assert log.read_text() == whole
    assert not list(tuned.folder.glob(".tuner-export-*"))


def test_an_export_writes_into_a_pipe(tuned: Shell, tmp_path: Path) -> None:
    """The pipe is not replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        answer = tuned("records", "export", str(pipe))
        out, _ = reader.communicate(timeout=30)

    assert answer.status == 0
    assert len(out.splitlines()) == 10
    assert pipe.is_fifo()


def test_a_full_disk_fails_the_export(tuned: Shell) -> None:
    """The exit status is 1, as the request was right."""
    answer = tuned("records", "export", "/dev/full")

    assert answer.status == 1
    assert answer.err == "tuner: cannot write /dev/full: No space left on device\n"

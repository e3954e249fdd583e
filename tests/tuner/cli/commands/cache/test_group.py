"""``tuner cache``: listing, explaining, verifying, removing and copying entries."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.tuner.build_cache.entries import CODE, WEIGHTS, key, large, put
from tests.tuner.cli.commands.conftest import Shell
from tuner.build_cache.cache import Cache
from tuner.errors import RequestError
from tuner.settings.values import parse_age, parse_size

DIGESTS = [key(number, trace=f"t{number}").digest for number in range(3)]


@pytest.fixture
def cache(shell: Shell) -> Cache:
    """A cache with two entries used today, and one with a large file used 40 days ago."""
    cache = Cache(shell.folder / "data" / "cache")
    for number in range(3):
        make = {"make": large} if number == 2 else {}
        path = put(cache, key(number, trace=f"t{number}"), **make)
        then = time.time() - (40 * 86400 if number == 2 else 60 * number)
        os.utime(path, (then, then))
    return cache


def listed(shell: Shell) -> list[str]:
    """Return the digests that ``tuner cache ls`` lists."""
    return [entry["digest"] for entry in shell("cache", "ls", "--json").json["entries"]]


def test_ls_lists_the_most_recently_used_entries_first(shell: Shell, cache: Cache) -> None:
    """JSON has the keys and files of the entries, the table their digests and their number."""
    answer = shell("cache", "ls", "--limit", "2", "--json").json

    assert answer["n_all"] == 3
    assert [entry["digest"] for entry in answer["entries"]] == DIGESTS[:2]
    assert answer["entries"][0]["parts"]["trace"] == "t0"
    assert answer["entries"][0]["files"]["code.o"]["n_bytes"] == len(CODE)
    shown = shell("cache", "ls", "--limit", "2").out
    assert DIGESTS[0][:12] in shown
    assert "2 entries of 3; --limit shows more" in shown
    assert cache.root == Path(answer["cache_dir"])


def test_ls_of_an_unused_kind_is_empty(shell: Shell, cache: Cache) -> None:
    """A malformed kind is a wrong request."""
    assert cache.find(key(0, trace="t0"))
    assert shell("cache", "ls", "--kind", "library", "--json").json["entries"] == []
    answer = shell("cache", "ls", "--kind", "../..")
    assert (answer.status, "--kind" in answer.err) == (2, True)


def test_an_empty_cache_is_not_an_error(shell: Shell) -> None:
    """No command creates the cache."""
    for words in (["ls"], ["stats"], ["verify"], ["gc"], ["gc", "--max-size", "1GB"]):
        assert shell("cache", *words).status == 0
        assert shell("cache", *words, "--json").status == 0
    assert not (shell.folder / "data").exists()


@pytest.mark.parametrize("command", ["ls", "stats", "verify", "gc"])
def test_a_cache_that_is_not_a_directory_is_a_wrong_request(shell: Shell, command: str) -> None:
    """It does not count as an empty cache."""
    (shell.folder / "file").touch()

    answer = shell("cache", command, "--cache-dir", "file")

    assert answer.status == 2
    assert answer.err.startswith("tuner: cannot read the cache ")


def test_stats_count_entries_by_kind(shell: Shell, cache: Cache) -> None:
    """The table ends with the total."""
    put(cache, key(0, kind="library"))

    kinds = shell("cache", "stats", "--json").json["kinds"]

    assert [(row["kind"], row["n_entries"]) for row in kinds] == [("library", 1), ("subgraph", 3)]
    assert "4 entries" in shell("cache", "stats").out


def test_explain_shows_the_parts_of_a_key(shell: Shell, cache: Cache) -> None:
    """It shows files and origin, too, and does not count as a use of the entry."""
    before = cache.local.path_of("subgraph", DIGESTS[2]).stat().st_mtime

    shown = shell("cache", "explain", DIGESTS[2][:10]).out

    for text in (DIGESTS[2], "trace = t2", "weights.bin", "stored as blob", "tuner 0."):
        assert text in shown
    assert cache.local.path_of("subgraph", DIGESTS[2]).stat().st_mtime == before


def test_explain_shows_the_differences_of_two_keys(shell: Shell, cache: Cache) -> None:
    """Each part that differs has both values."""
    assert cache.root.exists()
    answer = shell("cache", "explain", DIGESTS[0], DIGESTS[1], "--json").json

    assert answer["differing"] == [
        {"part": "trace", "values": ["t0", "t1"]},
        {"part": "workload", "values": [f"{0:016x}", f"{1:016x}"]},
    ]
    assert "trace: t0 | t1" in shell("cache", "explain", DIGESTS[0], DIGESTS[1]).out


@pytest.mark.parametrize(("prefix", "message"), [("zz", "no entry"), ("", "give more")])
def test_explain_needs_a_prefix_of_exactly_one_entry(
    shell: Shell, cache: Cache, prefix: str, message: str
) -> None:
    """The error says whether there is none or more than one."""
    assert cache.root.exists()
    answer = shell("cache", "explain", prefix)

    assert answer.status == 2
    assert message in answer.err


def test_verify_reports_damaged_entries(shell: Shell, cache: Cache) -> None:
    """The exit status is 1 until they are dropped."""
    path = cache.local.path_of("subgraph", DIGESTS[1])
    os.truncate(path, 100)

    answer = shell("cache", "verify")
    assert answer.status == 1
    assert f"{DIGESTS[1][:12]}: it is cut off" in answer.out
    assert shell("cache", "verify", "--json").json["verified"] == 3
    assert shell("cache", "verify", "--drop").status == 0
    assert shell("cache", "verify").status == 0
    assert listed(shell) == [DIGESTS[0], DIGESTS[2]]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ([], DIGESTS),
        (["--unused-for", "30d"], DIGESTS[:2]),
        (["--max-size", "1MB"], DIGESTS[:2]),
        (["--max-size", "0"], []),
        (["--max-size", "1GB", "--unused-for", "9w"], DIGESTS),
    ],
)
def test_gc_removes_old_and_excess_entries(
    shell: Shell, cache: Cache, words: list[str], left: list[str]
) -> None:
    """A dry run reports the same and removes nothing."""
    planned = shell("cache", "gc", *words, "--dry-run", "--json").json
    assert listed(shell) == DIGESTS

    done = shell("cache", "gc", *words, "--json").json

    assert listed(shell) == left
    assert {**planned, "dry_run": False} == done
    assert done["n_entries"] == 3 - len(left)
    assert cache.root.exists()


def test_a_bundle_copies_entries_to_another_cache(shell: Shell, cache: Cache) -> None:
    """A second import adds nothing."""
    other = str(shell.folder / "other")
    assert shell("cache", "export", "b.tar", "--kind", "subgraph", "--json").json["n_entries"] == 3

    answer = shell("cache", "import", "b.tar", "--cache-dir", other)

    assert answer.out == "imported b.tar: 3 entries added, 0 known\n"
    assert shell("cache", "import", "b.tar", "--json", TUNER_CACHE_DIR=other).json["known"] == 3
    entry = Cache(Path(other)).find(key(2, trace="t2"))
    assert entry is not None
    assert entry.read("weights.bin") == WEIGHTS
    assert cache.root.exists()


def test_a_truncated_bundle_is_a_failure(shell: Shell, cache: Cache) -> None:
    """The exit status is 1 and a note names the file."""
    shell("cache", "export", "b.tar")
    os.truncate(shell.folder / "b.tar", (shell.folder / "b.tar").stat().st_size - 10_000)

    answer = shell("cache", "import", "b.tar", "--cache-dir", "other")

    assert answer.status == 1
    assert "b.tar is cut off" in answer.err
    assert shell("cache", "import", "missing.tar").status == 2
    assert cache.root.exists()


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("0", 0), ("17", 17), ("5GB", 5 * 10**9), ("1.5 MiB", 3 << 19), ("2kb", 2000), ("7B", 7)],
)
def test_parse_size_reads_decimal_and_binary_units(text: str, n_bytes: int) -> None:
    """A number without a unit counts bytes."""
    assert parse_size("--max-size", text) == n_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5 apples", "1e9", "nan", "9" * 400])
def test_a_malformed_size_is_a_wrong_request(text: str) -> None:
    """The message gives an example."""
    with pytest.raises(RequestError, match=r"--max-size takes a size such as .*5GB"):
        parse_size("--max-size", text)


@pytest.mark.parametrize(
    ("text", "secs"),
    [("90s", 90), ("12h", 43200), ("30d", 2592000), ("1.5 w", 907200), ("2M", 120)],
)
def test_parse_age_reads_seconds_to_weeks(text: str, secs: float) -> None:
    """Units are case-insensitive."""
    assert parse_age("--unused-for", text) == secs


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y"])
def test_a_malformed_age_is_a_wrong_request(text: str) -> None:
    """A number without a unit is malformed."""
    with pytest.raises(RequestError, match=r"--unused-for takes a time such as .*30d"):
        parse_age("--unused-for", text)


def test_an_interrupted_export_leaves_nothing(shell: Shell, cache: Cache) -> None:
    """Ctrl-C ends it with status 130 and removes the unfinished bundle."""
    for number in range(60):
        put(cache, key(number, trace="more"), large)
    process = subprocess.Popen(
        shell.command("cache", "export", "b.tar"),
        env=shell.environ(),
        cwd=shell.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list(shell.folder.glob(".b.tar.*")):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 130, stderr
    assert "stopped by Ctrl-C" in stderr
    assert not list(shell.folder.glob("*b.tar*"))

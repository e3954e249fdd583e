"""Commands in the documentation: all of them parse, and the cheap ones run."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Cli
from tests.docs.documents import ROOT, Example, examples
from tuner.cli.main import make_program

EXAMPLES = examples()
# Commands that need no budget: without a worker, or with one that loads TVM.
_FREE = [
    ("records", "best"),
    ("records", "list"),
    ("records", "export"),
    ("cache", "ls"),
    ("cache", "stats"),
    ("cache", "verify"),
    ("cache", "gc"),
    ("cache", "export"),
]
_WITH_TVM = [("doctor",), ("tasks", "zoo:mlp")]
# Numbers of jobs and tasks belong to the reader's own database.
_NUMBERED = {"--job", "--task", "--target-id"}


def _distinct(parsed: list[Example]) -> list[Example]:
    """Return the first example of each command line."""
    return list({example.arguments: example for example in reversed(parsed)}.values())[::-1]


def _starts(example: Example, prefixes: Sequence[tuple[str, ...]]) -> bool:
    return any(example.arguments[: len(words)] == words for words in prefixes)


FREE = _distinct(
    [
        example
        for example in EXAMPLES
        if "--help" in example.arguments
        or (_starts(example, _FREE) and not _NUMBERED & set(example.arguments))
    ]
)
WITH_TVM = _distinct([example for example in EXAMPLES if _starts(example, _WITH_TVM)])


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands on an empty data directory."""
    return Cli(tmp_path)


@pytest.fixture(scope="module")
def program() -> Any:
    """The group of all commands."""
    return make_program()


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_is_a_valid_command_line(program: Any, example: Example) -> None:
    """Commands, options and values exist in the program; nothing runs."""
    command = program
    words = [word for word in example.arguments if word != "--help"]
    if words and words[0] in ("--server", "--token"):
        del words[:2]
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"no command {words[0]!r}"
        command = command.commands[words.pop(0)]
    if not hasattr(command, "commands") and "--help" not in example.arguments:
        command.make_context(command.name, words)


@pytest.mark.parametrize("example", FREE, ids=str)
def test_an_example_that_needs_no_worker_runs(cli: Cli, example: Example) -> None:
    """It ends with exit status 0 in an empty data directory."""
    answer = cli(*example.arguments)

    assert answer.status == 0, answer.err


@pytest.mark.tvm
@pytest.mark.parametrize("example", WITH_TVM, ids=str)
def test_an_example_that_needs_no_budget_runs(cli: Cli, example: Example) -> None:
    """It ends with exit status 0, and prints the table of tasks that is shown."""
    answer = cli(*example.arguments)

    assert answer.status == 0, answer.err
    if example.arguments[0] == "tasks" and example.output:
        assert answer.out.split() == example.output.split()


def test_the_readme_shows_every_command(program: Any) -> None:
    """Each command is in an example of the README."""
    shown = {example.arguments[0] for example in EXAMPLES if example.document == "README.md"}

    assert set(program.commands) - shown == set()


def test_make_help_lists_every_target() -> None:
    """The two targets of the README come first."""
    command = ["make", "--no-print-directory", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed[:2] == ["demo", "test"]
    assert set(listed[2:]) == {
        "serve", "test-ci", "test-all", "lint", "bench", "corpus", "docs", "site", "relay-env",
        "images", "sbom", "clean", "help",
    }  # fmt: skip

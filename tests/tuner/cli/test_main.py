"""The program ``tuner``: its help pages and its version."""

import io
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from records.database import open_database
from tests.cli import ROOT, Cli
from tests.forked import fork_server
from tuner.cli.main import make_program, run_program


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
    for word, child in getattr(command, "commands", {}).items():
        yield from _leaves(child, f"{name} {word}".strip())


PROGRAM = make_program()
COMMANDS = dict(_leaves(PROGRAM, ""))


def help_of(command: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the help page of a command as a wide terminal shows it."""
    monkeypatch.setenv("COLUMNS", "160")
    stream = io.StringIO()
    with redirect_stdout(stream):
        command.main(["--help"], standalone_mode=False)
    return stream.getvalue()


def test_commands_are_listed_along_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and commands are listed in four panels, without the packages that they work with."""
    code = """
import sys
sys.modules |= dict.fromkeys(["pydantic", "sqlalchemy", "numpy", "msgspec", "httpx", "tvm"])
sys.argv[0] = "tuner"
from tuner.__main__ import main
main()
"""
    page = help_of(PROGRAM, monkeypatch)
    command = [sys.executable, "-c", code, "--help"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    words = ["Tune and build", "tasks", "bench", "Look", "jobs", "Service", "Machine", "engine"]
    positions = [page.index(word) for word in words]
    assert positions == sorted(positions)
    assert listed.split("\n")[3:] == page.split("\n")[3:]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_page_has_examples_metavars_and_groups(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example is a line, no value is called by its Python type, many options have groups."""
    _, _, block = COMMANDS[name].help.partition("```text\n")
    block, _, rest = block.partition("```")
    examples = block.splitlines()
    options = [each for each in COMMANDS[name].params if each.param_type_name == "option"]

    page = help_of(COMMANDS[name], monkeypatch)

    assert any(f"tuner {name}" in example for example in examples)
    assert rest.strip() == ""
    assert set(examples) <= {line.strip() for line in page.splitlines()}
    for word in ("<str", "<int", "<float", "<bool", "<path", "<list"):
        assert word not in page
    assert (len(options) <= 10) == ("─ Options ─" in page)


def test_the_version_is_printed(tmp_path: Any) -> None:
    """It is that of the installed package."""
    answer = Cli(tmp_path)("--version")

    assert answer.out == f"tuner {metadata.version('subgraph-tuner')}\n"
    assert answer.status == 0


@pytest.mark.parametrize("closed", ["jobs >&-", "nothing 2>&-"])
def test_what_a_closed_stream_would_get_goes_nowhere(closed: str) -> None:
    """Neither a traceback nor an error on the other stream."""
    command = ["sh", "-c", f'"$0" -m tuner {closed}', sys.executable]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)

    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "")


def test_an_early_interrupt_shows_no_traceback() -> None:
    """Ctrl-C may come while the program is imported."""
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tuner.__main__ import main
class Finder:
    def find_spec(name, path, target=None):
        if name == "tuner.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
main()
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (130, "")


def test_seconds_that_are_spent_before_the_program_is_imported_end_it() -> None:
    """On a busy machine that takes longer; what Python frees at its end is left to the system."""
    code = """
import sys, time
class Finder:
    def find_spec(name, path, target=None):
        if name == "sqlalchemy":
            time.sleep(600.0)
sys.meta_path.insert(0, Finder)
class Freed:
    def __del__(self):
        print("freed")
freed = Freed()
from tuner.__main__ import main
main()
"""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    late, ended = run("tune", "zoo:mlp", "--seconds", "0.1"), run("--version")

    assert (late.returncode, late.stdout) == (1, "")
    assert late.stderr.startswith("tuner: the 0.1 s of the budget ended before the first trial;")
    assert (ended.returncode, ended.stdout) == (0, f"tuner {metadata.version('subgraph-tuner')}\n")


def test_a_disk_that_is_too_small_for_a_database_is_no_wrong_request(tmp_path: Path) -> None:
    """The work failed, and the same command may work later."""
    _, limit = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limit))
    try:
        with pytest.raises(SystemExit) as ended:
            run_program(lambda **_: open_database(f"sqlite:///{tmp_path}/x.db"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert ended.value.code == 1


def test_commands_of_tests_are_forked(tmp_path: Path) -> None:
    """A command that starts by itself imports the program for more than a second."""
    assert fork_server(ROOT).fits(Cli(tmp_path).environ())


def test_the_address_of_a_service_may_be_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option takes precedence, and an empty variable is a missing one."""
    monkeypatch.setenv("TUNER_HOST", "")
    monkeypatch.setenv("TUNER_PORT", "18099")

    given = [
        COMMANDS["serve"].make_context("serve", words).params for words in ([], ["--port", "0"])
    ]

    assert [(each["host"], each["port"]) for each in given] == [
        ("127.0.0.1", 18099),
        ("127.0.0.1", 0),
    ]

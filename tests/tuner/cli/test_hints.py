"""Commands that reports propose run as they are printed."""

import shlex
from pathlib import Path

import pytest

from tests.engines import toy
from tests.tuner.cli.commands.conftest import Shell


@pytest.fixture
def cli(tmp_path: Path) -> Shell:
    """A command line with an engine that needs no compiler."""
    return Shell(tmp_path, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})


def test_every_hint_runs(cli: Shell) -> None:
    """With the options of the command that printed it: another data directory, a seed."""
    options = ("--data-dir", "my data", "--random-weights", "3")
    built = cli("build", "zoo:mlp", "-o", "out", *options)
    tune = shlex.split(built.out.rpartition("`tuner ")[2].partition("`")[0])
    tuned = cli(*tune, "--trials", "30")
    build = shlex.split(tuned.err.rpartition("next: tuner ")[2].strip())

    assert (built.status, tuned.status) == (0, 0), built.err + tuned.err
    assert tuned.out.count("zoo:") == 0
    assert cli(*build).status == 0
    assert (cli.folder / "mlp.lib" / "manifest.json").is_file()
    assert cli("check", "mlp.lib").status == 0

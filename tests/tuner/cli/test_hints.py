"""Commands that reports propose run as they are printed."""

import shlex
from pathlib import Path

import pytest

from tests.cli import Cli
from tests.engines import toy


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """A command line with an engine that needs no compiler."""
    return Cli(tmp_path, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})


def test_every_hint_runs(cli: Cli) -> None:
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

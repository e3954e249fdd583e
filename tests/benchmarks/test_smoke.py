"""Benchmarks can be started, and work at sizes that take seconds."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PROGRAMS = [
    path.relative_to(_ROOT)
    for path in sorted((_ROOT / "benchmarks").rglob("*.py"))
    if "ArgumentParser(" in (text := path.read_text()) or "typer.Typer(" in text
]


@pytest.mark.parametrize("program", _PROGRAMS, ids=str)
def test_a_benchmark_has_a_help_text(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything that its module imports is there, and its options are described."""
    monkeypatch.setattr(sys, "argv", [str(program), "--help"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(_ROOT / program), run_name="__main__")

    assert ended.value.code == 0
    assert "--help" in capsys.readouterr().out


@pytest.mark.slow("minutes: benchmarks in a small size")
@pytest.mark.parametrize(
    "words",
    [
        "speed.tune_relax --trials 40 --per-round 2",
        "robustness.verification --schedules 10 --only softmax",
    ],
)
def test_a_benchmark_prints_one_line(words: str) -> None:
    """The line is JSON."""
    name, *options = words.split()

    assert json.loads(_run(name, *options).splitlines()[-1])["benchmark"] == name.split(".")[-1]


def _run(name: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        timeout=600,
        check=True,
    )
    return done.stdout

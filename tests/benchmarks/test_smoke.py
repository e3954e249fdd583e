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


@pytest.mark.slow("minutes: a benchmark in a small size")
def test_a_benchmark_prints_one_line() -> None:
    """The line is JSON."""
    words = ["benchmarks.robustness.verification", "--schedules", "10", "--only", "softmax"]

    printed = subprocess.run(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        timeout=600,
        check=True,
    ).stdout

    assert json.loads(printed.splitlines()[-1])["benchmark"] == "verification"

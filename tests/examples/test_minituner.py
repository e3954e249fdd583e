"""The teaching edition tunes, checks its library, and continues with its records."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# In a process of its own, in which it replaces a module of TVM. It compares its library with ONNX's
# evaluator.
_PROGRAM = """
from examples import minituner
minituner.CANDIDATES_PER_ROUND, minituner.TRIAL_TIMEOUT_SECS = 2, 300
minituner.main()
minituner.main()
"""


@pytest.mark.in_ci
@pytest.mark.slow("15 s of real tuning")
def test_a_second_run_continues_with_the_records_of_the_first(tmp_path: Path) -> None:
    """Trials of both runs are in the database, each once."""
    database = tmp_path / "mini.sqlite"
    command = [sys.executable, "-c", _PROGRAM, "--trials", "2", "--database", str(database)]

    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)

    assert done.stdout.count("equal outputs") == 2
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT workload, trace, run_secs FROM record").fetchall()
    assert len(rows) >= 4
    assert len({(workload, trace) for workload, trace, _ in rows}) == len(rows)
    assert any(run_secs is not None for *_, run_secs in rows)

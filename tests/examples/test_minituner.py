"""The teaching edition tunes, checks its library, and continues with its records."""

import sqlite3
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _tune(database: Path) -> None:
    """Run the example, which compares its library with ONNX's evaluator."""
    command = ["examples/minituner.py", "--trials", "4", "--database", str(database)]
    run = subprocess.run(
        [sys.executable, *command], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert "equal outputs" in run.stdout


def test_a_second_run_continues_with_the_records_of_the_first(tmp_path: Path) -> None:
    """Trials of both runs are in the database, each once."""
    database = tmp_path / "mini.sqlite"

    _tune(database)
    _tune(database)

    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT workload, trace, run_secs FROM record").fetchall()
    connection.close()
    assert len(rows) >= 8
    assert len({(workload, trace) for workload, trace, _ in rows}) == len(rows)
    assert any(run_secs is not None for *_, run_secs in rows)

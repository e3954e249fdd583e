"""Results of a pack while processes that measure end."""

import signal
from pathlib import Path

import pytest

from tuner.packs import result_lines
from tuner.packs.runner import command


@pytest.mark.parametrize("has_started", [False, True])
def test_process_that_ends_within_a_line_costs_that_line(tmp_path: Path, has_started: bool) -> None:
    """Rows that follow count."""
    out = tmp_path / "results"
    rows = [{"network": "mlp", **({"started": True} if has_started else {"after": [1.0]})}]
    out.write_bytes(result_lines.dump("key", rows[0]) + result_lines.dump("key", rows[0])[:30])

    command._blame("key", out, -signal.SIGKILL)
    with out.open("ab") as stream:
        stream.write(result_lines.dump("key", {"network": "next"}))

    blamed = [{"network": "mlp", "problem": "it took too long"}] if has_started else []
    assert result_lines.load("key", out.read_bytes())[0] == [*rows, *blamed, {"network": "next"}]

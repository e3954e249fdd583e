"""Recordings in files."""

import math
from pathlib import Path

import pytest

from scheduler.replay import RecordedTask, Recording
from tuner.errors import RequestError
from tuner.job_replay import recording


def test_a_damaged_recording_is_named_on_one_line(tmp_path: Path) -> None:
    """An error of pydantic would tell of its types and its website."""
    path = tmp_path / "recording.json"
    task = RecordedTask("a", 1, 2.0, "g", (1, 2), (math.inf, 0.5), (1.0, 2.0))
    recording.write(Recording("network", (task,)), path)
    path.write_text(path.read_text().replace("null", "0.25"))

    with pytest.raises(RequestError, match=r"damaged: the best latency of task a rises$"):
        recording.read(path)

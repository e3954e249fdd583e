"""Folders of agents: gone with their process, and nobody else's."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tuner.executors.ray.folders import folder_of_process

_MAKE = "from tuner.executors.ray.folders import folder_of_process; print(folder_of_process())"


def test_folders_of_ended_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of living ones stay."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", _MAKE], capture_output=True, text=True, check=True, timeout=60
    )
    left = Path(done.stdout.strip())
    assert left.is_dir()

    first, second = folder_of_process(), folder_of_process()

    assert not left.exists()
    assert first.is_dir()
    assert second.is_dir()


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns it could put code there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)

    with pytest.raises(PermissionError, match="another user"):
        folder_of_process()

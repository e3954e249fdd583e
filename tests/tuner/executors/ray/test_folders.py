"""Folders that last as long as their process."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tuner.executors.ray.folders import process_folder

_MAKE = "from tuner.executors.ray.folders import process_folder; print(process_folder())"


def test_folders_of_ended_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of living processes stay."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", _MAKE], capture_output=True, text=True, check=True, timeout=60
    )
    left = Path(done.stdout.strip())
    assert left.is_dir()

    first, second = process_folder(), process_folder()

    assert not left.exists()
    assert first.is_dir()
    assert second.is_dir()


def test_unlocked_folders_are_removed_with_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process leaves such a folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = process_folder()
    leftover = own.with_name("leftover")
    leftover.mkdir()
    (leftover / "artifact").touch()

    other = process_folder()

    assert sorted(own.parent.iterdir()) == sorted([own, other])


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner could put code there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other_user = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other_user)

    with pytest.raises(PermissionError, match="another user"):
        process_folder()

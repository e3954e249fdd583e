"""Folders that last as long as their process."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tuner.files import process_folder as folders
from tuner.files.process_folder import process_folder

# The second ends without its exit handlers.
_PRINT = (
    "from tuner.files.process_folder import process_folder; print(process_folder(), flush=True)"
)
_MAKE = f"{_PRINT}; import os; os._exit(0)"


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_folders", {})


def _run(program: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return Path(done.stdout.strip())


def test_a_process_has_one_folder_which_goes_with_it() -> None:
    """At its normal end."""
    assert process_folder() == process_folder()
    assert not _run(_PRINT).exists()


def test_folders_of_ended_processes_are_removed() -> None:
    """A killed process leaves its folder; those of living processes stay."""
    left = _run(_MAKE)
    assert left.is_dir()

    own = process_folder()
    _run(_MAKE)

    assert not left.exists()
    assert own.is_dir()


def test_unlocked_folders_are_removed_with_their_files() -> None:
    """Whatever is in them."""
    own = process_folder()
    leftover = own.with_name("leftover")
    leftover.mkdir()
    (leftover / "artifact").touch()

    last = _run(_MAKE)

    assert sorted(own.parent.iterdir()) == sorted([own, last])


def test_a_forked_child_has_a_folder_of_its_own() -> None:
    """It may outlive its parent, or end before it."""
    own = process_folder()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(process_folder()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 4096).decode() != str(own)
    os.close(reader)
    os.close(writer)
    assert own.is_dir()


def test_a_folder_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could put code there."""
    other_user = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other_user)

    with pytest.raises(PermissionError, match="another user"):
        process_folder()

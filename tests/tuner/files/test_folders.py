"""Replacement of whole folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.tuner.library.small_library import fill
from tuner.errors import WorkError
from tuner.files.folders import replace_folder
from tuner.library import manifest


def names(folder: Path) -> list[str]:
    """Return the names of all files in a folder, hidden ones included."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [WorkError("the compiler failed"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    """The old library stays, and the temporary folder is removed."""
    out = replace_folder(tmp_path / "out", fill)
    before = (out / "lib.so").read_bytes()

    def write(made: Path) -> None:
        (made / "lib.so").write_bytes(b"half")
        raise error

    with pytest.raises(type(error)):
        replace_folder(out, write)
    assert (out / "lib.so").read_bytes() == before
    assert names(tmp_path) == ["out"]


def test_process_killed_while_writing_leaves_the_old_library(tmp_path: Path) -> None:
    """A kill -9 in the middle of a write costs a temporary folder at most."""
    out = tmp_path / "out"
    replace_folder(out, fill)
    before = (out / "lib.so").read_bytes()
    program = (
        "import os, pathlib, signal\n"
        "from tuner.files.folders import replace_folder\n"
        "def write(folder):\n"
        "    (folder / 'lib.so').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"replace_folder(pathlib.Path({str(out)!r}), write)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )

    assert done.returncode == -9
    assert (out / "lib.so").read_bytes() == before
    manifest.verify(out, manifest.read(out))


def test_replacing_swaps_whole_folders(tmp_path: Path) -> None:
    """A new library replaces all files of the old one, and no temporary folder is left."""
    out = tmp_path / "deep" / "out"
    replace_folder(out, fill)
    (out / "stale").touch()

    replace_folder(out, lambda folder: fill(folder, b"second"))

    assert names(out) == ["lib.so", "manifest.json"]
    assert (out / "lib.so").read_bytes() == b"second"
    assert names(out.parent) == ["out"]


def test_empty_folder_is_replaced(tmp_path: Path) -> None:
    """A folder that a user made in advance is replaced."""
    (tmp_path / "out").mkdir()

    replace_folder(tmp_path / "out", fill)

    assert names(tmp_path / "out") == ["lib.so", "manifest.json"]


def test_library_is_readable_by_others(tmp_path: Path) -> None:
    """The library does not keep the private mode of the temporary folder."""
    out = replace_folder(tmp_path / "out", fill)

    assert out.stat().st_mode & 0o777 == 0o755


def test_missing_parents_that_cannot_be_made_are_a_work_error(tmp_path: Path) -> None:
    """The error about a file in the path is one line."""
    (tmp_path / "file").touch()

    with pytest.raises(WorkError, match="cannot write") as caught:
        replace_folder(tmp_path / "file" / "out", fill)
    assert len(str(caught.value).splitlines()) == 1

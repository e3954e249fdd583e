"""The compile cache keeps whole libraries, under their keys, or none."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.tuner.library.make import fill
from tuner.errors import WorkError
from tuner.library import manifest
from tuner.library.store import Store, copy_into, key_of, replace_folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store, whose folder does not exist yet."""
    return Store(tmp_path / "libraries")


def names(folder: Path) -> list[str]:
    """Everything in a folder, hidden or not."""
    return sorted(path.name for path in folder.iterdir())


def test_key_depends_on_every_part_and_not_on_their_order() -> None:
    """Equal parts, equal key."""
    assert key_of({"a": 1, "b": {"c": [2]}}) == key_of({"b": {"c": [2]}, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})
    assert len(key_of({})) == 64


def test_what_was_added_is_found(store: Store) -> None:
    """A library comes back whole, with no leftovers beside it."""
    folder = store.add("key", fill)

    assert store.find("key") == folder == store.root / "key"
    assert store.find("other") is None
    assert names(store.root) == ["key"]
    assert names(folder) == ["lib.so", "manifest.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "lib.so").write_bytes(b"altered"),
        lambda folder: (folder / "lib.so").write_bytes(b""),
        lambda folder: (folder / "lib.so").unlink(),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe\x00"),
        lambda folder: (folder / "manifest.json").write_text('{"version": 99}'),
    ],
    ids=["altered", "empty", "gone", "no-manifest", "cut", "list", "binary", "newer"],
)
def test_damaged_library_is_dropped(store: Store, damage: Callable[[Path], object]) -> None:
    """A library that is not what was added is not found, and can be added again."""
    damage(store.add("key", fill))

    assert store.find("key") is None
    assert not (store.root / "key").exists()
    assert store.find("key") is None
    store.add("key", fill)
    assert store.find("key")


def test_half_written_library_is_never_visible(store: Store) -> None:
    """While a library is written, its key has nothing, and after a failure nothing either."""
    seen = []

    def write(folder: Path) -> None:
        fill(folder)
        seen.append(store.find("key"))
        raise OSError(28, "No space left on device")

    with pytest.raises(WorkError, match="No space left on device"):
        store.add("key", write)
    assert seen == [None]
    assert names(store.root) == []


@pytest.mark.parametrize("error", [WorkError("the compiler failed"), KeyboardInterrupt()])
def test_failure_while_writing_leaves_nothing(store: Store, error: BaseException) -> None:
    """Whatever ends the writing, the old library stays and no temporary folder does."""
    folder = store.add("key", fill)
    before = (folder / "lib.so").read_bytes()

    def write(made: Path) -> None:
        (made / "lib.so").write_bytes(b"half")
        raise error

    with pytest.raises(type(error)):
        store.add("key", write)
    assert (folder / "lib.so").read_bytes() == before
    assert names(store.root) == ["key"]


def test_process_killed_while_writing_leaves_the_old_library(tmp_path: Path) -> None:
    """A kill -9 in the middle of a write costs a temporary folder at most."""
    out = tmp_path / "out"
    replace_folder(out, fill)
    before = (out / "lib.so").read_bytes()
    program = (
        "import os, pathlib, signal\n"
        "from tuner.library.store import replace_folder\n"
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
    """A new library replaces all files of the old one, and nothing is left beside it."""
    out = tmp_path / "deep" / "out"
    replace_folder(out, fill)
    (out / "stale").touch()

    replace_folder(out, lambda folder: fill(folder, b"second"))

    assert names(out) == ["lib.so", "manifest.json"]
    assert (out / "lib.so").read_bytes() == b"second"
    assert names(out.parent) == ["out"]


def test_empty_folder_is_replaced(tmp_path: Path) -> None:
    """A folder that a user made in advance is no obstacle."""
    (tmp_path / "out").mkdir()

    replace_folder(tmp_path / "out", fill)

    assert names(tmp_path / "out") == ["lib.so", "manifest.json"]


def test_library_is_readable_by_others(tmp_path: Path) -> None:
    """A library is not as private as the temporary folder it was written in."""
    out = replace_folder(tmp_path / "out", fill)

    assert out.stat().st_mode & 0o777 == 0o755


def test_missing_parents_that_cannot_be_made_are_a_work_error(tmp_path: Path) -> None:
    """A file where a folder should be is said in one line."""
    (tmp_path / "file").touch()

    with pytest.raises(WorkError, match="cannot write") as caught:
        replace_folder(tmp_path / "file" / "out", fill)
    assert len(str(caught.value).splitlines()) == 1


def test_copy_is_whole(store: Store, tmp_path: Path) -> None:
    """The checksums of a library hold for its copy."""
    folder = store.add("key", fill)

    out = replace_folder(tmp_path / "out", copy_into(folder))

    manifest.verify(out, manifest.read(out))


def test_two_writers_of_one_key_leave_a_whole_library(store: Store) -> None:
    """Processes that build the same network at once do not disturb each other."""
    meet = threading.Barrier(2)
    errors = []

    def write(folder: Path) -> None:
        fill(folder)
        meet.wait(10)

    def add() -> None:
        try:
            store.add("key", write)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert store.find("key")
    assert names(store.root) == ["key"]

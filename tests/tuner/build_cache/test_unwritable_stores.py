"""Stores that cannot be written, are full, or lie on another file system."""

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tuner.build_cache.entries import CODE, WEIGHTS, key, large, names, put
from tests.tuner.build_cache.privileges import without_privilege
from tuner.build_cache.cache import Cache


@contextmanager
def file_limit(n_bytes: int) -> Iterator[None]:
    """Limit the size of files: the kernel refuses larger ones as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Make a folder and all below it read-only."""
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with without_privilege():
            yield
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_a_read_only_store_serves_hits(cache: Cache, warnings: list[str]) -> None:
    """There is no warning, since nothing is wrong."""
    put(cache, key(), large)
    with read_only(cache.root):
        made = cache.get_or_make(key(), large)

    assert made.hit
    assert made.entry.read("weights.bin") == WEIGHTS
    assert warnings == []


def test_a_read_only_store_does_not_stop_a_build(
    cache: Cache, warnings: list[str], tmp_path: Path
) -> None:
    """Missing entries are made and used; one warning says that they are not kept."""
    put(cache, key(0), large)
    before = names(cache.root)
    with read_only(cache.root):
        first = cache.get_or_make(key(1), large)
        second = cache.get_or_make(key(2), large)
    first.entry.write_into(tmp_path)

    assert not first.hit
    assert (tmp_path / "weights.bin").read_bytes() == WEIGHTS
    assert second.entry.read("code.o") == CODE
    assert len(warnings) == 1
    assert "Permission denied; nothing is kept" in warnings[0]
    assert names(cache.root) == before


def test_a_damaged_entry_of_a_read_only_store_is_not_used(
    cache: Cache, warnings: list[str]
) -> None:
    """It stays on disk."""
    path = put(cache, key())
    os.truncate(path, 300)
    with read_only(cache.root):
        assert cache.find(key()) is None

    assert "damaged" in warnings[0]
    assert path.exists()


def test_a_full_disk_does_not_stop_a_build(
    cache: Cache, warnings: list[str], tmp_path: Path
) -> None:
    """The entry is used and nothing of it is left in the store; a later one is kept."""
    folder = tmp_path / "made"
    folder.mkdir()
    info = large(folder)
    lock = cache.try_lock(key())
    assert lock is not None
    with file_limit(4096):
        entry = lock.keep(folder, info)
    shutil.rmtree(folder)

    assert entry.read("weights.bin") == WEIGHTS
    assert "File too large; nothing is kept" in warnings[0]
    assert names(cache.root) == []
    put(cache, key(), large)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill_up(folder: Path) -> None:
    """Fill the disk of a folder."""
    with contextlib.suppress(OSError), (folder / "rest").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def test_a_disk_that_is_full_does_not_stop_a_build(small_disk: Path, warnings: list[str]) -> None:
    """Folders are made on another disk, and entries without a lock if its file finds no room."""
    cache = Cache(small_disk / "cache", warn=warnings.append)
    put(cache, key(0))
    assert cache.get_or_make(key(1), large).entry.read("weights.bin") == WEIGHTS
    fill_up(small_disk)

    assert cache.get_or_make(key(2), large).entry.read("weights.bin") == WEIGHTS
    assert cache.get_or_make(key(0), large).hit
    assert "No space left on device; nothing is kept" in warnings[0]
    (small_disk / "rest").unlink()
    put(cache, key(3))


def test_a_store_on_another_file_system_gives_copies(warnings: list[str], tmp_path: Path) -> None:
    """Hard links cannot cross file systems."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is only one file system here")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        cache = Cache(Path(folder) / "cache", warn=warnings.append)
        put(cache, key(), large)
        with cache.find(key()) or pytest.fail("gone") as entry:
            entry.write_into(tmp_path)

    assert (tmp_path / "weights.bin").read_bytes() == WEIGHTS
    assert (tmp_path / "weights.bin").stat().st_nlink == 1
    assert warnings == []

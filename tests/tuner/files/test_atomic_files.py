"""Files that appear whole or not at all."""

from pathlib import Path

import pytest

from tuner.files.atomic_files import atomic_file


def test_a_complete_file_replaces_the_old_one(tmp_path: Path) -> None:
    """The folder has no other file."""
    path = tmp_path / "result"
    path.write_bytes(b"old")

    with atomic_file(path) as stream:
        stream.write(b"new")
        assert path.read_bytes() == b"old"

    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """The half is removed."""
    path = tmp_path / "result"
    path.write_bytes(b"old")

    with pytest.raises(TypeError), atomic_file(path) as stream:
        stream.writelines([b"half", "text"])  # type: ignore[list-item]

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]

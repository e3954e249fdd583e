"""The folder of models, libraries and the database belongs to its user alone."""

import stat
from pathlib import Path

import pytest

from tuner.context import open_context


@pytest.mark.parametrize(
    ("before", "after"), [(None, 0o700), (0o755, 0o700), (0o700, 0o700), (0o2775, 0o2770)]
)
def test_other_users_cannot_enter_the_data_directory(
    tmp_path: Path, before: int | None, after: int
) -> None:
    """Whatever the umask, also one that exists; the set-group-ID bit shares it with its group."""
    folder = tmp_path / "data"
    if before is not None:
        folder.mkdir()
        folder.chmod(before)

    with open_context(data_dir=folder):
        pass

    assert stat.S_IMODE(folder.stat().st_mode) == after


@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_a_folder_with_other_uses_keeps_its_mode(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One like /tmp, or one with files of the user; a warning says so once."""
    folder = tmp_path / "data"
    folder.mkdir()
    if mode == 0o755:
        (folder / "pictures").mkdir()
    folder.chmod(mode)

    for _ in range(2):
        with open_context(data_dir=folder):
            pass

    assert stat.S_IMODE(folder.stat().st_mode) == mode
    assert [str(folder) in record.message for record in caplog.records] == [True]


def test_a_database_of_any_name_is_no_other_use(tmp_path: Path) -> None:
    """Its file and those that SQLite adds belong to the data directory."""
    folder = tmp_path / "data"
    for _ in range(2):
        with open_context(f"sqlite:///{folder}/mine.db?timeout=5", folder):
            folder.chmod(0o755)

    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    with open_context(f"sqlite:///{folder}/mine.db?timeout=5", folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_database_elsewhere_is_private(tmp_path: Path) -> None:
    """It has tokens, records and jobs, and may lie in a folder that others read."""
    path = tmp_path / "records.db"
    for _ in range(2):
        with open_context(f"sqlite:///{path}", tmp_path / "data"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)

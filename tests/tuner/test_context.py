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


def test_a_database_elsewhere_is_private(tmp_path: Path) -> None:
    """It has tokens, records and jobs, and may lie in a folder that others read."""
    path = tmp_path / "records.db"
    for _ in range(2):
        with open_context(f"sqlite:///{path}", tmp_path / "data"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)

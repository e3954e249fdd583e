"""A disk without room is to blame for what fails by it, a candidate for everything else."""

import errno
import os
from pathlib import Path

import pytest

from tuner.engines.base import RunResult
from tuner.errors import DiskFull
from tuner.measure import disk_space

FAILED = RunResult(error_kind="build_error", error_text="linking failed: undefined reference")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_in_words(number: int) -> None:
    """With the system's reason, and without a path."""
    with (
        pytest.raises(DiskFull, match=f"{os.strerror(number)}; make room") as caught,
        disk_space.raising_disk_full(),
    ):
        raise OSError(number, os.strerror(number), "/a/path")

    assert "/a/path" not in str(caught.value)


def test_other_errors_pass() -> None:
    """They say what they are."""
    with pytest.raises(PermissionError), disk_space.raising_disk_full():
        raise PermissionError(errno.EACCES, "denied")


def test_a_candidate_is_not_blamed_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where a linker says so, nor where nothing says it and there is no room."""
    full = RunResult(
        error_kind="build_error",
        error_text=f"linking failed: ld: final link failed: {os.strerror(errno.ENOSPC)}",
    )
    with pytest.raises(DiskFull):
        disk_space.check_free_space(full, tmp_path)
    assert disk_space.check_free_space(FAILED, tmp_path) is FAILED

    monkeypatch.setattr(disk_space, "_MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(DiskFull):
        disk_space.check_free_space(FAILED, tmp_path)
    timed = RunResult((1.0, 1.0, 1.0))
    assert disk_space.check_free_space(timed, tmp_path) is timed

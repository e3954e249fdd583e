"""Tests that failures of a full disk are not recorded as failures of a candidate."""

import errno
import os
from pathlib import Path

import pytest

from tuner.engines.base import RunResult
from tuner.errors import DiskFull
from tuner.measure import disk_space

FAILED = RunResult(error_kind="build_error", error_text="linking failed: undefined reference")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_an_error_with_advice(number: int) -> None:
    """The error has the system's reason, and no path."""
    with (
        pytest.raises(DiskFull, match=f"{os.strerror(number)}; make room") as caught,
        disk_space.raising_disk_full(),
    ):
        raise OSError(number, os.strerror(number), "/a/path")

    assert "/a/path" not in str(caught.value)


def test_other_errors_pass() -> None:
    """Errors other than of a full disk are raised unchanged."""
    with pytest.raises(PermissionError), disk_space.raising_disk_full():
        raise PermissionError(errno.EACCES, "denied")


def test_a_candidate_is_not_blamed_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is blamed if a linker names it, or if almost no room is left."""
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

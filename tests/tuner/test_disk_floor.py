"""Floor of free disk space."""

import shutil
from dataclasses import replace
from pathlib import Path

from tuner.disk_floor import DiskWatch, folders_of, shortage
from tuner.settings import Settings, read_settings
from tuner.settings.retention import RetentionSettings


def settings_of(tmp_path: Path, floor: int | None) -> Settings:
    """Settings with a floor; the folders need not exist."""
    settings = read_settings({"data_dir": tmp_path / "data"}, {"TUNER_CONFIG": ""})
    return replace(settings, retention=RetentionSettings(min_free_disk=floor))


def test_floor_counts_what_is_about_to_be_stored(tmp_path: Path) -> None:
    """A file that leaves less than the floor is too large, and a disk without it is not."""
    free = shutil.disk_usage(tmp_path).free
    settings = settings_of(tmp_path, free // 2)

    assert shortage(settings) == ""
    reason = shortage(settings, int(0.6 * free))
    assert reason.startswith("the disk of the data directory has ")
    assert shortage(settings_of(tmp_path, 2 * free)) != ""
    assert shortage(settings_of(tmp_path, 0), free // 2) == ""


def test_folders_are_those_that_a_service_fills(tmp_path: Path) -> None:
    """An SQLite file counts, a server of PostgreSQL has a disk of its own."""
    settings = settings_of(tmp_path, None)
    postgres = replace(settings, database="postgresql://somewhere/tuner")

    assert folders_of(settings)["database"] == tmp_path / "data"
    assert set(folders_of(postgres)) == {"data directory", "build cache"}


def test_watch_reads_the_disk_once_a_second(tmp_path: Path) -> None:
    """A write that failed counts as a full disk for a few seconds, whatever the floor is."""
    now = [0.0]
    watch = DiskWatch(settings_of(tmp_path, 0), lambda: now[0])
    assert not watch.is_short

    watch.note_full()
    now[0] = 4.0
    assert watch.is_short
    now[0] = 6.0
    assert not watch.is_short

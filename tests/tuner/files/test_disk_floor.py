"""Floor of free disk space."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.files.disk_floor import DiskWatch, disks_of, folders_of, shortage
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
    assert "database" not in folders_of(postgres)
    assert folders_of(postgres)["uploads"] == tmp_path / "data" / "uploads"


def test_each_disk_counts_once(tmp_path: Path) -> None:
    """It has the name of the first folder on it, and what all folders on it need."""
    other = Path("/dev/shm")
    folders = {"data directory": tmp_path, "uploads": other / "new", "models": tmp_path / "models"}

    first, second = disks_of(folders)

    assert (first.name, first.names) == ("data directory", ("data directory", "models"))
    assert (second.folder, second.names) == (other, ("uploads",))


def test_a_volume_of_uploads_has_a_floor_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full volume of uploads counts, though the disk of the data directory has space."""
    settings = settings_of(tmp_path, 10**9)
    settings.data_dir.mkdir()
    (settings.data_dir / "uploads").symlink_to("/dev/shm")

    def usage(folder: Path) -> shutil._ntuple_diskusage:
        free = 10**8 if str(folder.resolve()).startswith("/dev/shm") else 10**12
        return shutil._ntuple_diskusage(2 * 10**12, 10**12, free)

    monkeypatch.setattr(shutil, "disk_usage", usage)

    assert shortage(settings).startswith("the disk of the uploads has 100")


def test_an_upload_counts_twice_where_it_is_copied(tmp_path: Path) -> None:
    """It is a temporary file first, on the same disk unless that is a volume of its own."""
    free = shutil.disk_usage(tmp_path).free
    settings = settings_of(tmp_path, 0)

    assert shortage(settings, n_upload_bytes=int(0.4 * free)) == ""
    assert shortage(settings, n_upload_bytes=int(0.6 * free)) != ""


def test_an_import_counts_once(tmp_path: Path) -> None:
    """Its log is a temporary file, and nothing copies it."""
    free = shutil.disk_usage(tmp_path).free
    settings = settings_of(tmp_path, 0)

    assert shortage(settings, n_import_bytes=int(0.6 * free)) == ""
    assert shortage(settings, n_upload_bytes=int(0.3 * free), n_import_bytes=int(0.6 * free)) != ""


@pytest.mark.parametrize(("n_free", "has_room"), [(2**30 - 1, False), (2**30, True)])
def test_a_disk_has_room_whatever_floor_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_free: int, has_room: bool
) -> None:
    """A round needs no more than the default floor keeps free."""
    usage = shutil.disk_usage(tmp_path)._replace(total=2**40, free=n_free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage)

    assert DiskWatch(settings_of(tmp_path, 0)).has_room == has_room


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

"""The two files of a MetaSchedule database, written together or not at all."""

import gzip
from io import StringIO
from pathlib import Path

import pytest

from tuner.cli.commands.records import log_files
from tuner.errors import RequestError
from tuner.tuning_logs.metaschedule import RECORDS, WORKLOADS


def test_a_database_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Both files are new, and no temporary file is left."""
    for text in ("old", "new"):
        with log_files.open_folder(str(tmp_path)) as written:
            for stream in written:
                stream.write(text)

    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        WORKLOADS: "new",
        RECORDS: "new",
    }


def test_a_failed_write_leaves_the_old_database(tmp_path: Path) -> None:
    """Workloads of one database are never left with the records of another."""
    (tmp_path / WORKLOADS).write_text("old")
    (tmp_path / RECORDS).write_text("old")

    with pytest.raises(RequestError), log_files.open_folder(str(tmp_path)) as (workloads, _):
        log_files.copy(tmp_path / "none", workloads)

    assert {file.read_text() for file in tmp_path.iterdir()} == {"old"}


def test_new_records_never_lie_beside_old_workloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop between the two files leaves one of them, which no tool reads as a database."""
    (tmp_path / WORKLOADS).write_text("old")
    (tmp_path / RECORDS).write_text("old")
    replace = Path.replace

    def stop(path: Path, target: Path) -> Path:
        if target.name == WORKLOADS:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt), log_files.open_folder(str(tmp_path)):
        pass

    assert [file.name for file in tmp_path.iterdir()] == [RECORDS]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\xff\n", "it is not UTF-8"), (gzip.compress(b"[1]\n" * 999)[:-9], "Compressed file ended")],
    ids=["encoding", "cut off"],
)
def test_a_damaged_file_is_not_copied(tmp_path: Path, content: bytes, reason: str) -> None:
    """The error names the file and the reason."""
    file = tmp_path / WORKLOADS
    file.write_bytes(content)

    with pytest.raises(RequestError, match=f"cannot read {file}: {reason}"):
        log_files.copy(file, StringIO())

"""Logs with any content are read line by line."""

import gzip
import io
import os
from pathlib import Path

import pytest

from tuner.errors import RequestError
from tuner.tuning_logs.files import Line, open_log, read_lines


def lines(content: bytes, most_bytes: int = 100) -> list[Line]:
    """Return the lines of some bytes."""
    return list(read_lines(io.BytesIO(content), most_bytes))


def test_lines_have_a_number_and_no_newline() -> None:
    """Empty lines and comments are counted and left out."""
    parsed = lines(b'{"a":1}\r\n\n# a comment\n[2]\n')

    assert parsed == [Line(1, '{"a":1}'), Line(4, "[2]")]


@pytest.mark.parametrize(("end", "torn"), [(b"[2]", False), (b"[2", True), (b'"\xc3', True)])
def test_an_incomplete_last_line_is_torn(end: bytes, torn: bool) -> None:
    """A truncated file differs from one that lacks its last newline."""
    *_, last = lines(b"[1]\n" + end)

    assert (last.number, last.torn) == (2, torn)


def test_undecodable_bytes_are_a_problem_of_their_line() -> None:
    """The lines after it are read."""
    first, second = lines(b"\xff\xfe[\x00\n[2]\n")

    assert first.problem.startswith("it is not UTF-8")
    assert second == Line(2, "[2]")


def test_a_byte_order_mark_is_removed() -> None:
    """Some editors write one."""
    assert lines(b"\xef\xbb\xbf[1]\n") == [Line(1, "[1]")]


def test_an_endless_line_takes_little_memory() -> None:
    """It is skipped, and the next line has the right number."""
    first, second = lines(b"[" + b"1," * 500 + b"1]\n[2]\n")

    assert first == Line(1, "", "it is longer than 9.53674e-05 MiB")
    assert second == Line(2, "[2]")


def test_a_gzip_log_reads_like_a_plain_one(tmp_path: Path) -> None:
    """It is recognised by its content, not its name."""
    file = tmp_path / "log.json"
    file.write_bytes(gzip.compress(b"[1]\n[2]\n"))

    with open_log(str(file)) as stream:
        assert [line.text for line in read_lines(stream)] == ["[1]", "[2]"]


def test_a_pipe_reads_like_a_file() -> None:
    """It is copied to disk, because a pipe cannot be rewound."""
    reader, writer = os.pipe()
    os.write(writer, gzip.compress(b"[1]\n"))
    os.close(writer)

    with open_log(f"/dev/fd/{reader}") as stream:
        assert [line.text for line in read_lines(stream)] == ["[1]"]
    os.close(reader)


def test_a_truncated_gzip_log_ends_with_a_torn_line(tmp_path: Path) -> None:
    """The lines that can be unpacked are read."""
    file = tmp_path / "log.json.gz"
    file.write_bytes(gzip.compress(b"[1]\n" * 50_000)[:-20])

    with open_log(str(file)) as stream:
        parsed = list(read_lines(stream))

    assert parsed[0] == Line(1, "[1]")
    assert [line for line in parsed if line.torn] == [parsed[-1]]


def test_a_damaged_gzip_log_is_refused(tmp_path: Path) -> None:
    """One line names the last readable line."""
    packed = bytearray(gzip.compress(b"[1]\n"))
    packed[-6] ^= 1
    file = tmp_path / "log.json.gz"
    file.write_bytes(bytes(packed))

    with open_log(str(file)) as stream, pytest.raises(RequestError, match="than line 1: CRC"):
        list(read_lines(stream))


@pytest.mark.parametrize(("name", "reason"), [("", "Is a directory"), ("no", "No such file")])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """The error has its name and the reason."""
    with (
        pytest.raises(RequestError, match=f"cannot read .*: {reason}"),
        open_log(str(tmp_path / name)),
    ):
        pass

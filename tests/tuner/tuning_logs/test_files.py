"""Logs are read line by line, whatever is in them."""

import gzip
import io
import os
from pathlib import Path

import pytest

from tuner.errors import RequestError
from tuner.tuning_logs.files import Line, open_log, read_lines


def lines(content: bytes, most_bytes: int = 100) -> list[Line]:
    """The lines of some bytes."""
    return list(read_lines(io.BytesIO(content), most_bytes))


def test_lines_have_their_number_and_no_end() -> None:
    """Empty lines and comments are counted and left out."""
    found = lines(b'{"a":1}\r\n\n# a comment\n[2]\n')

    assert found == [Line(1, '{"a":1}'), Line(4, "[2]")]


@pytest.mark.parametrize(("end", "torn"), [(b"[2]", False), (b"[2", True), (b'"\xc3', True)])
def test_a_last_line_without_an_end_is_torn_unless_it_is_whole(end: bytes, torn: bool) -> None:
    """A file that somebody cut off differs from one that lacks its newline."""
    *_, last = lines(b"[1]\n" + end)

    assert (last.number, last.torn) == (2, torn)


def test_what_is_no_text_is_a_problem_of_its_line() -> None:
    """The lines after it are read."""
    first, second = lines(b"\xff\xfe[\x00\n[2]\n")

    assert first.problem.startswith("it is not UTF-8")
    assert second == Line(2, "[2]")


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """Some editors write one."""
    assert lines(b"\xef\xbb\xbf[1]\n") == [Line(1, "[1]")]


def test_a_line_without_end_takes_no_memory() -> None:
    """It is passed over to its end, and the next one has the right number."""
    first, second = lines(b"[" + b"1," * 500 + b"1]\n[2]\n")

    assert first == Line(1, "", "it is longer than 9.53674e-05 MiB")
    assert second == Line(2, "[2]")


def test_a_packed_log_reads_like_a_plain_one(tmp_path: Path) -> None:
    """It is recognised by what is in it, not by its name."""
    file = tmp_path / "log.json"
    file.write_bytes(gzip.compress(b"[1]\n[2]\n"))

    with open_log(str(file)) as stream:
        assert [line.text for line in read_lines(stream)] == ["[1]", "[2]"]


def test_a_pipe_reads_like_a_file() -> None:
    """It is spooled, for nobody can go back in it."""
    reader, writer = os.pipe()
    os.write(writer, gzip.compress(b"[1]\n"))
    os.close(writer)

    with open_log(f"/dev/fd/{reader}") as stream:
        assert [line.text for line in read_lines(stream)] == ["[1]"]
    os.close(reader)


def test_a_packed_log_that_was_cut_off_ends_with_a_torn_line(tmp_path: Path) -> None:
    """What can be unpacked is read."""
    file = tmp_path / "log.json.gz"
    file.write_bytes(gzip.compress(b"[1]\n" * 50_000)[:-20])

    with open_log(str(file)) as stream:
        found = list(read_lines(stream))

    assert found[0] == Line(1, "[1]")
    assert [line for line in found if line.torn] == [found[-1]]


def test_a_packed_log_that_is_damaged_is_refused(tmp_path: Path) -> None:
    """One line says how far it could be read."""
    packed = bytearray(gzip.compress(b"[1]\n"))
    packed[-6] ^= 1
    file = tmp_path / "log.json.gz"
    file.write_bytes(bytes(packed))

    with open_log(str(file)) as stream, pytest.raises(RequestError, match="than line 1: CRC"):
        list(read_lines(stream))


@pytest.mark.parametrize(("name", "reason"), [("", "Is a directory"), ("no", "No such file")])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """With its name and the reason."""
    with (
        pytest.raises(RequestError, match=f"cannot read .*: {reason}"),
        open_log(str(tmp_path / name)),
    ):
        pass

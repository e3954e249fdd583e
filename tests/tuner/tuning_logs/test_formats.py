"""The format of a log is recognised."""

import io

import pytest

from records.logs import log_lines
from tests.tuner.tuning_logs import make
from tuner.tuning_logs import formats


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (log_lines.header(), "tuner"),
        (make.ansor(1.0), "ansor"),
        (make.ansor(1.0, version="v0.2"), "ansor"),
        (make.metaschedule(), "metaschedule"),
        ('["123","gX4A"]', "metaschedule"),
        ("garbage\n\n" + make.ansor(1.0), "ansor"),
        ("garbage", "tuner"),
        ("", "tuner"),
    ],
)
def test_a_log_is_recognised_by_its_first_lines(content: str, name: str) -> None:
    """The stream is rewound; an unknown format is left to the tuner's own parser."""
    stream = io.BytesIO(content.encode())

    assert formats.recognise(stream) == name
    assert stream.tell() == 0


def test_undecodable_bytes_do_not_stop_recognition() -> None:
    """Later lines still show the format."""
    assert formats.recognise(io.BytesIO(b"\xff\xfe\n" * 200)) == "tuner"

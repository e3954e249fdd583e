"""A log shows which format it has."""

import io

import pytest

from records import log_lines
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
    """The stream is left at its beginning; what is of no format is ours to refuse."""
    stream = io.BytesIO(content.encode())

    assert formats.recognise(stream) == name
    assert stream.tell() == 0


def test_bytes_that_are_no_text_are_of_no_format() -> None:
    """They do not stop it either."""
    assert formats.recognise(io.BytesIO(b"\xff\xfe\n" * 200)) == "tuner"

"""Summaries of errors, as parts of other messages."""

import pytest
from sqlalchemy.exc import OperationalError

from tuner.errors import error_text, last_line, summary


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), "ValueError"),
        (ValueError(""), "ValueError"),
        (ValueError(" \n \n"), "ValueError"),
        (KeyError("name"), "'name'"),
        (RuntimeError("\n  first \nsecond"), "first"),
        (RuntimeError("Server disconnected."), "Server disconnected"),
        (OSError(13, "Permission denied", "/a"), "Permission denied: '/a'"),
        (OSError(), "OSError"),
        (OperationalError("SELECT 1", {}, Exception("disk is full\nmore")), "disk is full"),
        (RuntimeError("x" * 5000), "x" * 2000),
    ],
)
def test_summary_is_the_first_line_that_is_not_blank(error: Exception, expected: str) -> None:
    """Every exception has a summary, even one without a text."""
    assert summary(error) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "ValueError"),
        ("Traceback:\n  at 1\nDivideError: by zero\n\n", "DivideError: by zero"),
        ("Op Foo is not supported\nTraceback\nlast", "Op Foo is not supported"),
    ],
)
def test_summary_of_a_traceback_is_its_last_line(text: str, expected: str) -> None:
    """A line with a preferred phrase comes before the last line."""
    assert summary(ValueError(text), last=True, prefer=["not supported"]) == expected


def test_summary_is_cut() -> None:
    """A summary is not longer than the caller allows."""
    assert summary(ValueError("abcdef"), max_chars=3) == "abc"


@pytest.mark.parametrize(
    ("text", "expected"), [(None, ""), ("", ""), (" \n", ""), ("a\nb \n\n", "b"), ("a", "a")]
)
def test_last_line_of_a_text(text: str | None, expected: str) -> None:
    """Blank lines do not count."""
    assert last_line(text) == expected


def test_error_text_ends_with_the_end_of_the_message() -> None:
    """The class is kept when the message is cut."""
    assert error_text(ValueError("abcdef"), 2) == "ValueError: ef"

"""Summaries of errors, as parts of other messages."""

import pytest
from sqlalchemy.exc import OperationalError

from tuner.errors import (
    ModelError,
    WorkError,
    described,
    error_text,
    last_line,
    plain_reason,
    summary,
)


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


def test_the_error_of_a_model_is_one_printable_line_of_bounded_length() -> None:
    """Names in a model may be of any length and hold anything; the code stays at the end."""
    error = ModelError(f"no input {'x' * 1_000_000}\x00\n\ud800", code="input-shape")

    assert str(error).isprintable()
    assert len(str(error)) < 2_100
    assert str(error).startswith("no input xxx")
    assert str(error).endswith("\ufffd\ufffd\ufffd [input-shape]")


def test_unexpected_errors_are_described() -> None:
    """Internal text is not part of the new error; those of the package and of memory pass."""

    def describe(reason: str) -> ModelError:
        return ModelError(f"it failed{reason}", code="not-loaded")

    with pytest.raises(ModelError) as caught, described(describe):
        raise KeyError("/secret/path")
    assert str(caught.value) == "it failed, and the reason is unknown [not-loaded]"
    for error in (MemoryError(), WorkError("a full disk"), OSError(28, "No space left")):
        with pytest.raises(type(error)), described(describe):
            raise error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Axis is out of bounds", ": Axis is out of bounds"),
        (
            "Traceback\n  file.cc\nValueError: pads need 4 numbers",
            ": ValueError: pads need 4 numbers",
        ),
        ("Check failed: (n == m) is false", ", and the reason is unknown"),
        ("/project/src/relax/ir.cc:67: n is 3", ", and the reason is unknown"),
        ("T.buffer has 3 axes", ", and the reason is unknown"),
        ("'NoneType' object is not iterable", ", and the reason is unknown"),
        ("object of type 'Call' has no len()", ", and the reason is unknown"),
        ("invalid literal for int() with base 10: 'u0'", ", and the reason is unknown"),
        ("list index out of range", ", and the reason is unknown"),
        ("", ", and the reason is unknown"),
        ("long " * 99, ", and the reason is unknown"),
    ],
)
def test_a_reason_has_no_text_of_a_compiler(text: str, expected: str) -> None:
    """A line about the model is passed on, and one about a program is not."""
    assert plain_reason(ValueError(text)) == expected

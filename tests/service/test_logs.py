"""Logs as JSON lines."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tuner.service import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The log of a test; the loggers are restored after it."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    written = io.StringIO()
    logs.set_up(stream=written)
    yield written
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Parse every line."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_the_bound_fields_and_the_given_ones(stream: io.StringIO) -> None:
    """Fields that are bound inside replace those outside, and end with their context."""
    log = logging.getLogger("tuner.test")
    with logs.bound(job=3, pick=1):
        with logs.bound(pick=2):
            log.info("a trial took %d ms", 5, extra={"record": 7})
        log.info("inside")
    log.warning("outside\nof it")

    first, second, third = lines(stream)
    assert first == {
        "time": first["time"],
        "level": "info",
        "logger": "tuner.test",
        "message": "a trial took 5 ms",
        "job": 3,
        "pick": 2,
        "record": 7,
    }
    assert (second["job"], second["pick"]) == (3, 1)
    assert third["message"] == "outside\nof it"
    assert "job" not in third


def test_an_exception_stays_on_its_line(stream: io.StringIO) -> None:
    """The traceback is a field, and values that are not JSON become text."""
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("a").exception("it failed", extra={"what": {1, 2}})

    (line,) = lines(stream)
    assert "ValueError: broken" in line["exception"]
    assert line["what"] == "{1, 2}"


def test_text_has_the_same_fields_on_one_line(stream: io.StringIO) -> None:
    """Values with spaces are quoted, and no value can forge a line or a field."""
    logs.set_up("warning", "text", stream)
    log = logging.getLogger("api.access")
    log.info("not written")
    with logs.bound(job=3):
        log.warning("two\nlines", extra={"path": '/a b"\n', "subject": None, "status": 401})

    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("+00:00")
    assert rest == ('warning api.access two lines job=3 path="/a b\\"\\n" subject=- status=401\n')

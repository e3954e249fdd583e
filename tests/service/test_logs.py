"""Logs that a program can read."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tuner.service import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What is logged, with the loggers as they were after it."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    written = io.StringIO()
    logs.set_up(stream=written)
    yield written
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Every line, parsed."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_what_is_bound_and_what_is_given(stream: io.StringIO) -> None:
    """Inner fields win, and are gone outside."""
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
    """With its traceback as a field; what JSON does not know is text."""
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("a").exception("it failed", extra={"what": {1, 2}})

    (line,) = lines(stream)
    assert "ValueError: broken" in line["exception"]
    assert line["what"] == "{1, 2}"

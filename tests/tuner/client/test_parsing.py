"""Answers are read by their dataclasses: newer fields are passed over, wrong ones are errors."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest

from tuner.client import Build, Event, ServerError
from tuner.client.parsing import parse
from tuner.client.streams import lines_of, parse_events

BUILD: dict[str, Any] = {
    "id": 1,
    "job_id": 2,
    "model_index": 0,
    "strict": False,
    "state": "queued",
    "message": None,
    "library_key": None,
    "sha256": None,
    "n_bytes": None,
    "created": "2026-01-02T03:04:05Z",
    "updated": "2026-01-02T03:04:05.5+00:00",
}


def test_a_newer_field_is_passed_over() -> None:
    """An older client goes on working."""
    build = parse(Build, {**BUILD, "colour": "red"})

    assert build.created == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert asdict(build).keys() == BUILD.keys()


def test_an_optional_field_may_be_missing() -> None:
    """An older service does not know it yet."""
    assert parse(Build, {k: v for k, v in BUILD.items() if k != "n_bytes"}).n_bytes is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "one"}, "int in Build.id"),
        ({"id": True}, "int in Build.id"),
        ({"id": None}, "Build.id"),
        ({"created": "yesterday"}, "time in Build.created"),
        ({"n_bytes": 1.5}, "Build.n_bytes"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], words: str) -> None:
    """With the field it is in."""
    with pytest.raises(ServerError, match=words):
        parse(Build, BUILD | changes)


def test_a_required_field_is_missed() -> None:
    """It is named."""
    with pytest.raises(ServerError, match=r"lacks Build\.id"):
        parse(Build, {k: v for k, v in BUILD.items() if k != "id"})


EVENT = b'{"sequence":1,"kind":"state","created":"2026-01-02T03:04:05Z","data":{"state":"done"}}'
STREAM = b": hello\n\nretry: 2000\n\nid: 1\nevent: state\ndata: " + EVENT + b"\n\n: heartbeat\n\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_stream_is_read_however_it_is_cut(size: int, ending: bytes) -> None:
    """Into pieces, with either line ending."""
    stream = STREAM.replace(b"\n", ending)
    chunks = [stream[i : i + size] for i in range(0, len(stream), size)]

    events = list(parse_events(lines_of(chunks)))

    assert [event and event.sequence for event in events] == [None, 1, None]


def test_an_event_that_was_cut_off_is_none() -> None:
    """It comes again with the next connection."""
    stream = STREAM.partition(b"\n\n: heart")[0]

    assert list(parse_events(lines_of([stream]))) == [None]


def test_an_event_that_is_none_is_an_error() -> None:
    """Not a crash."""
    with pytest.raises(ServerError):
        list(parse_events(["data: hello", ""]))
    with pytest.raises(ServerError):
        list(parse_events(['data: {"sequence": "x"}', ""]))


def test_events_are_plain_data() -> None:
    """They can be compared and printed."""
    (event,) = [e for e in parse_events(lines_of([STREAM])) if e is not None]

    assert event == parse(
        Event,
        {
            "sequence": 1,
            "kind": "state",
            "created": "2026-01-02T03:04:05Z",
            "data": {"state": "done"},
        },
    )

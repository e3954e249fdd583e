"""Answers are read into shapes: unknown fields are ignored, wrong ones are errors."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from tuner.client import Build, Event, ServerError
from tuner.client.models import read_answer
from tuner.client.streams import lines_of, parse_events
from tuner.schemas import Page

Shape = TypeVar("Shape")
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
    "quarantined": False,
    "profile": False,
}


def read(kind: type[Shape], value: Any) -> Shape:
    """Read a shape as it arrives over HTTP."""
    return read_answer(kind, json.dumps(value).encode())


def test_an_unknown_field_is_ignored() -> None:
    """An older client keeps working with a newer service."""
    build = read(Build, {**BUILD, "colour": "red"})

    assert build.created == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert asdict(build).keys() == BUILD.keys()


def test_an_optional_field_may_be_missing() -> None:
    """An older service does not send it yet."""
    assert read(Build, {k: v for k, v in BUILD.items() if k != "n_bytes"}).n_bytes is None


def test_items_of_a_page_are_read_alike() -> None:
    """Unknown and missing fields are tolerated in every item, and the last page has no next."""
    item = {k: v for k, v in BUILD.items() if k != "message"} | {"colour": "red"}

    page = read(Page[Build], {"items": [item], "total": 1})

    assert (page.items[0].id, page.items[0].message, page.next) == (1, None, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "one"}, r"Build\.id: .*integer"),
        ({"id": "1"}, r"Build\.id: .*integer"),
        ({"id": True}, r"Build\.id: .*integer"),
        ({"id": None}, r"Build\.id: .*integer"),
        ({"created": "yesterday"}, r"Build\.created: .*datetime"),
        ({"n_bytes": 1.5}, r"Build\.n_bytes: .*integer"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], words: str) -> None:
    """The error names the field and the type that it must have."""
    with pytest.raises(ServerError, match=words):
        read(Build, BUILD | changes)


def test_a_missing_required_field_is_named() -> None:
    """The error names the field."""
    with pytest.raises(ServerError, match=r"Build\.id: Field required"):
        read(Build, {k: v for k, v in BUILD.items() if k != "id"})


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"null", b"\xff"])
def test_another_server_is_an_error(content: bytes) -> None:
    """An answer that is not JSON, or not an object, asks to check the URL."""
    with pytest.raises(ServerError, match="check that the URL is that of a tuner service"):
        read_answer(Build, content)


EVENT = b'{"sequence":1,"kind":"state","created":"2026-01-02T03:04:05Z","data":{"state":"done"}}'
STREAM = b": hello\n\nretry: 2000\n\nid: 1\nevent: state\ndata: " + EVENT + b"\n\n: heartbeat\n\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_stream_is_read_however_it_is_cut(size: int, ending: bytes) -> None:
    """Events survive any split into pieces, with either line ending."""
    stream = STREAM.replace(b"\n", ending)
    chunks = [stream[i : i + size] for i in range(0, len(stream), size)]

    events = list(parse_events(lines_of(chunks)))

    assert [event and event.sequence for event in events] == [None, 1, None]


def test_an_event_that_was_cut_off_is_dropped() -> None:
    """The next connection sends it again."""
    stream = STREAM.partition(b"\n\n: heart")[0]

    assert list(parse_events(lines_of([stream]))) == [None]


def test_a_malformed_event_is_an_error() -> None:
    """A client raises a ServerError for it."""
    with pytest.raises(ServerError):
        list(parse_events(["data: hello", ""]))
    with pytest.raises(ServerError):
        list(parse_events(['data: {"sequence": "x"}', ""]))


def test_events_are_plain_data() -> None:
    """Events can be compared and printed."""
    (event,) = [e for e in parse_events(lines_of([STREAM])) if e is not None]

    assert event == read(
        Event,
        {
            "sequence": 1,
            "kind": "state",
            "created": "2026-01-02T03:04:05Z",
            "data": {"state": "done"},
        },
    )

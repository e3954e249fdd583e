"""The form of a request, before it is sent."""

import gzip
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tuner.client.uploads import form, log_body
from tuner.errors import RequestError
from tuner.jobs.requests import parse_input_sets

Shapes = Mapping[str, Sequence[int]]


def sent(inputs: Shapes | Sequence[Shapes]) -> list[str]:
    """Return the fields with shapes."""
    with form([], ["zoo:mlp"], {"inputs": inputs}, None) as parts:
        return [value for name, (_, value) in parts if name == "input"]


def test_truth_values_are_sent_as_such() -> None:
    """The service reads them as values of inputs."""
    assert sent({"flag": (True,), "ids": (1, 2)}) == ["flag=true", "ids=1,2"]


def test_tasks_are_sent_one_by_one() -> None:
    """One text alone is one task."""
    for task in ("conv", ["conv", "0ab"]):
        with form([], ["zoo:mlp"], {"task": task}, None) as parts:
            texts = [value for name, (_, value) in parts if name == "task"]
        assert texts == ([task] if isinstance(task, str) else task)


@pytest.mark.parametrize(
    "sets",
    [
        [{"a": (1, 2)}, {"a": (3, 4)}],
        [{"a": (1,), "b": (2,)}, {"b": (4,), "a": (3,)}],
        [{}],
    ],
)
def test_sets_of_shapes_arrive_as_they_were(sets: list[Shapes]) -> None:
    """The service reads what the client meant."""
    assert parse_input_sets(sent(sets)) == sets


@pytest.mark.parametrize(
    "sets",
    [
        [{"a": (1,)}, {"b": (2,)}],
        [{"a": (1,), "b": (2,)}, {"a": (3,)}],
        [{}, {"a": (1,)}],
        [{}, {}],
    ],
)
def test_sets_of_other_names_are_refused(sets: list[Shapes]) -> None:
    """They would arrive as one set, or as others."""
    with pytest.raises(RequestError, match="name the same inputs in every set") as refused:
        sent(sets)

    assert refused.value.field == "input"


def test_the_length_of_a_log_on_disk_is_announced(tmp_path: Path) -> None:
    """It counts from the position, and lines that are added while it is sent stay out."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntwo\n")
    with path.open("rb") as log:
        log.readline()
        content, headers = log_body(log)
        with path.open("ab") as more:
            more.write(b"three\n")

        assert b"".join(content) == b"two\n"
    assert headers["content-length"] == "4"


def test_streams_of_unknown_length_announce_none(tmp_path: Path) -> None:
    """A pipe, an archive, whose file has other bytes, and pieces are sent as they are read."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n"))
    read_end, write_end = os.pipe()
    os.write(write_end, b"one\n")
    os.close(write_end)
    with gzip.open(tmp_path / "a.gz") as archive, os.fdopen(read_end, "rb") as pipe:
        for log in (pipe, archive, io.BytesIO(b"one\n"), [b"one\n"]):
            content, headers = log_body(log)
            assert b"".join(content) == b"one\n"
            assert "content-length" not in headers

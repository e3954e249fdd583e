"""Files that travel with the calls that name them."""

from pathlib import Path

import pytest

from tuner.engines.base import EvaluatorSettings, RunRequest
from tuner.executors.ray.file_transfer import pack, rename, requests_in, texts_in, unpack
from tuner.executors.ray.folders import folder_of_process


def request(artifact: str, reference: str = "") -> RunRequest:
    """Ask for one run."""
    return RunRequest(artifact, "target", reference, EvaluatorSettings())


def test_folder_is_unpacked_as_it_was_packed(tmp_path: Path) -> None:
    """With what lies deeper, and empty files."""
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "there" / "deep" / "kernel.so").write_bytes(b"\x00\xff")
    (tmp_path / "there" / "empty").touch()

    unpack(pack(tmp_path / "there"), tmp_path / "here")

    assert pack(tmp_path / "here") == {"deep/kernel.so": b"\x00\xff", "empty": b""}


def test_file_is_unpacked_as_a_file(tmp_path: Path) -> None:
    """A reference is one."""
    unpack(b"content", tmp_path / "reference.npz")

    assert (tmp_path / "reference.npz").read_bytes() == b"content"


def test_names_are_found_and_replaced_wherever_they_stand() -> None:
    """In requests, lists of them, and by themselves; other texts stay."""
    args = (request("a", "r"), [request("b"), request("c", "r")], "a", 3, "d")
    places = {"a": "/1", "b": "/2", "r": "/r"}

    renamed = rename(args, places)

    assert renamed == (request("/1", "/r"), [request("/2"), request("c", "/r")], "/1", 3, "d")
    assert sorted(texts_in(args)) == ["a", "a", "b", "c", "d"]
    assert [each.reference for each in requests_in(args)] == ["r", "", "r"]


def test_folder_goes_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process left is removed by the next; what lives is not."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = folder_of_process()
    left = mine.with_name("left")
    left.mkdir()
    (left / "artifact").touch()

    other = folder_of_process()

    assert sorted(mine.parent.iterdir()) == sorted([mine, other])

"""Files that are sent along with the calls that name them."""

from pathlib import Path

import pytest

from tuner.engines.base import EvaluatorSettings, RunRequest
from tuner.executors.file_transfer import pack, rename, requests_in, texts_in, unpack


def request(artifact: str, *references: str) -> RunRequest:
    """Return a request for one run."""
    return RunRequest(artifact, "target", references, EvaluatorSettings())


def test_folder_is_unpacked_as_it_was_packed(tmp_path: Path) -> None:
    """Nested folders and empty files are kept."""
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "there" / "deep" / "kernel.so").write_bytes(b"\x00\xff")
    (tmp_path / "there" / "empty").touch()

    unpack(pack(tmp_path / "there"), tmp_path / "here")

    assert pack(tmp_path / "here") == {"deep/kernel.so": b"\x00\xff", "empty": b""}


def test_file_is_unpacked_as_a_file(tmp_path: Path) -> None:
    """A reference is a single file."""
    unpack(b"content", tmp_path / "reference.npz")

    assert (tmp_path / "reference.npz").read_bytes() == b"content"


@pytest.mark.parametrize("name", ["../other", "a/../../other", "{}/other"])
def test_no_file_is_written_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    """A service may send any name."""
    with pytest.raises(ValueError, match="outside of the folder"):
        unpack({name.format(tmp_path): b""}, tmp_path / "here")

    assert not (tmp_path / "other").exists()


def test_names_are_replaced_wherever_they_occur() -> None:
    """Requests, lists of requests and plain texts are renamed; other texts stay."""
    args = (request("a", "r"), [request("b"), request("c", "r", "s")], "a", 3, "d")
    paths = {"a": "/1", "b": "/2", "r": "/r"}

    renamed = rename(args, paths)

    assert renamed == (request("/1", "/r"), [request("/2"), request("c", "/r", "s")], "/1", 3, "d")
    assert sorted(texts_in(args)) == ["a", "a", "b", "c", "d"]
    assert [request.references for request in requests_in(args)] == [("r",), (), ("r", "s")]

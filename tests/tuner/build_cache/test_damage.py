"""Damaged files of the store cause a warning and a rebuild, and never a wrong entry."""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.build_cache.entries import CODE, WEIGHTS, key, large, names, put, small
from tests.tuner.build_cache.privileges import without_privilege
from tuner.build_cache import headers, keys
from tuner.build_cache.cache import Cache


def flip(path: Path, offset: int) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit a header and update its checksum."""
    data = path.read_bytes()
    n_header, n_raw = headers.read_prefix(data)
    header = json.loads(data[headers.PREFIX.size : headers.PREFIX.size + n_header])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(_prefix(text, n_raw) + text + data[headers.PREFIX.size + n_header :])


def _prefix(text: bytes, n_raw: int, version: int = headers.VERSION) -> bytes:
    start = headers.PREFIX.pack(headers.MAGIC, version, len(text), n_raw, bytes(32))[:-32]
    return start + hashlib.sha256(start + text).digest()


def as_folder(path: Path) -> None:
    """Replace a file by a folder that is not empty."""
    path.unlink()
    path.mkdir()
    (path / "something").touch()


def blob_of(path: Path) -> Path:
    """Return the blob of an entry."""
    (blob,) = path.parent.glob("*.blob")
    return blob


def edited_blob(path: Path) -> None:
    """Write into a read-only file, as root or its owner can."""
    blob = blob_of(path)
    blob.chmod(0o644)
    flip(blob, 1000)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "not-an-entry": lambda path: path.write_bytes(b"something else" * 100),
    "cut-in-prefix": lambda path: os.truncate(path, 20),
    "cut-in-header": lambda path: os.truncate(path, 200),
    "cut-at-end": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "bit-in-magic": lambda path: flip(path, 0),
    "bit-in-length": lambda path: flip(path, 13),
    "bit-in-raw-bytes": lambda path: flip(path, 17),
    "bit-in-checksum": lambda path: flip(path, 30),
    "bit-in-header": lambda path: flip(path, 100),
    "bit-in-content": lambda path: flip(path, path.stat().st_size - 2),
    "folder": as_folder,
    "blob-gone": lambda path: blob_of(path).unlink(),
    "blob-cut": lambda path: os.truncate(blob_of(path), 10),
    "blob-empty": lambda path: os.truncate(blob_of(path), 0),
    "blob-edited": edited_blob,
    "blob-folder": lambda path: as_folder(blob_of(path)),
    "parts-edited": lambda path: rewrite(path, lambda raw: raw["parts"].update(workload="x")),
    "kind-edited": lambda path: rewrite(path, lambda raw: raw.update(kind="library")),
    "kind-nonsense": lambda path: rewrite(path, lambda raw: raw.update(kind="../..")),
    "files-nonsense": lambda path: rewrite(path, lambda raw: raw.update(files=[])),
    "name-outside": lambda path: rewrite(
        path, lambda raw: raw["files"].update({"../out": raw["files"].pop("code.o")})
    ),
    "form-unknown": lambda path: rewrite(
        path, lambda raw: raw["files"]["code.o"]["stored"].update(form="xz")
    ),
    "offset-outside": lambda path: rewrite(
        path, lambda raw: raw["files"]["code.o"]["stored"].update(offset=10**9)
    ),
    "offset-negative": lambda path: rewrite(
        path, lambda raw: raw["files"]["code.o"]["stored"].update(offset=-1)
    ),
    "no-info": lambda path: rewrite(path, lambda raw: raw.pop("info")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_dropped_and_made_again(
    cache: Cache, warnings: list[str], damage: Callable[[Path], object]
) -> None:
    """One warning names it; the new entry is whole, and no other file is left."""
    path = put(cache, key(), large)
    whole = names(cache.root)
    damage(path)

    assert cache.find(key()) is None
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert len(warnings[0].splitlines()) == 1
    assert names(cache.root) == []
    put(cache, key(), large)
    entry = cache.find(key())
    assert entry is not None
    assert (entry.read("code.o"), entry.read("weights.bin")) == (CODE, WEIGHTS)
    assert names(cache.root) == whole
    assert len(warnings) == 1


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_under_its_lock_is_made_again(
    cache: Cache, damage: Callable[[Path], object]
) -> None:
    """Damage that is noticed under the lock does not stop the build."""
    damage(put(cache, key(), large))

    made = cache.get_or_make(key(), large)

    assert not made.hit
    assert made.entry.read("weights.bin") == WEIGHTS


def test_swapped_entries_are_not_used(cache: Cache, warnings: list[str]) -> None:
    """A whole entry under the name of another counts as damaged."""
    first, second = put(cache, key()), put(cache, key(1))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)

    assert cache.find(key()) is None
    assert cache.find(key(1)) is None
    assert all("made for another key" in warning for warning in warnings)


def test_a_collision_of_digests_is_a_miss(
    cache: Cache, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are compared as a whole, even if their digests are equal."""

    class Colliding:
        """A hash that is equal for all inputs."""

        @staticmethod
        def sha256(_text: bytes) -> Any:
            return Colliding()

        @staticmethod
        def hexdigest() -> str:
            return "ab" * 32

    monkeypatch.setattr(keys, "hashlib", Colliding)
    put(cache, key())
    other = key(1)
    assert key().digest == other.digest

    assert cache.find(other) is None
    assert "made for another key" in warnings[0]


def test_an_entry_of_a_later_version_is_left_alone(cache: Cache, warnings: list[str]) -> None:
    """It is neither used nor dropped: a later version may need it."""
    path = put(cache, key())
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, 8, headers.VERSION + 1)
    path.write_bytes(content)

    assert cache.find(key()) is None
    assert "later version" in warnings[0]
    assert path.read_bytes() == content
    assert cache.get_or_make(key(), small).entry.read("code.o") == CODE


def test_a_pipe_in_the_place_of_an_entry_does_not_block(cache: Cache) -> None:
    """Both a look-up and a build go on."""
    path = put(cache, key())
    path.unlink()
    os.mkfifo(path)

    assert cache.find(key()) is None
    assert cache.get_or_make(key(), small).entry.read("code.o") == CODE


@pytest.mark.parametrize("which", ["entry", "blob"])
def test_an_unreadable_entry_is_made_again(cache: Cache, warnings: list[str], which: str) -> None:
    """A warning says why."""
    path = put(cache, key(), large)
    (path if which == "entry" else blob_of(path)).chmod(0)

    with without_privilege():
        made = cache.get_or_make(key(), large)

    assert not made.hit
    assert "Permission denied" in warnings[0]
    assert Cache(cache.root).get_or_make(key(), large).hit


def test_a_file_in_the_place_of_the_store_is_warned_of(tmp_path: Path, warnings: list[str]) -> None:
    """An entry is made and used, and is not kept."""
    (tmp_path / "cache").touch()
    cache = Cache(tmp_path / "cache", warn=warnings.append)

    assert cache.get_or_make(key(), small).entry.read("code.o") == CODE
    assert "cannot write the cache" in warnings[0]


def test_a_store_that_was_removed_is_made_again(cache: Cache, warnings: list[str]) -> None:
    """A store may be emptied at any time."""
    put(cache, key())
    shutil.rmtree(cache.root)

    assert cache.find(key()) is None
    put(cache, key())
    assert warnings == []


def test_only_the_examined_version_is_dropped(cache: Cache) -> None:
    """An entry that was made again since stays."""
    path = put(cache, key())
    with path.open("rb") as seen:
        status = os.fstat(seen.fileno())
        path.unlink()
        put(cache, key())

        assert not cache.local.drop("subgraph", key().digest, status)
    assert cache.local.drop("subgraph", key().digest, path.stat())
    assert names(cache.root) == []

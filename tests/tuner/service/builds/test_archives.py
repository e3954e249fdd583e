"""Archives of libraries: kept while they are good, written again when they are damaged."""

import io
from hashlib import sha256
from pathlib import Path

import pytest

from tests.tuner.library import signing_keys as keys
from tests.tuner.library import small_library as small
from tuner.client.downloads import unpack
from tuner.errors import WorkError
from tuner.library import manifest as manifests
from tuner.library.signatures import SignaturePolicy
from tuner.service.builds.archives import archives_of, pack

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The files of a library."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "lib.so").write_bytes(CONTENT)
    described = small.described(files={"lib.so": sha256(CONTENT).hexdigest()})
    manifests.write(folder, described)
    return folder


def test_a_good_archive_is_kept(library: Path, tmp_path: Path) -> None:
    """Other builds name it by its checksum."""
    first = pack(library, "key", tmp_path)
    path = archives_of(tmp_path) / first.name
    before = path.stat()

    assert pack(library, "key", tmp_path) == first
    assert path.stat().st_ino == before.st_ino


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "other file"])
def test_a_damaged_archive_is_written_again(library: Path, tmp_path: Path, damage: str) -> None:
    """It used to get a new checksum, so that no client could tell."""
    first = pack(library, "key", tmp_path)
    path = archives_of(tmp_path) / first.name
    good = path.read_bytes()
    middle = len(good) // 2
    path.write_bytes(
        {
            "flipped": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
            "cut": good[:middle],
            "empty": b"",
            "other file": b"\x1f\x8b",
        }[damage]
    )

    assert pack(library, "key", tmp_path) == first
    assert path.read_bytes() == good


def test_an_archive_is_signed_once_there_is_a_key(library: Path, tmp_path: Path) -> None:
    """And again with another key."""
    plain = pack(library, "key", tmp_path)
    signed = pack(library, "key", tmp_path, keys.SIGNING)
    assert signed.sha256 != plain.sha256
    assert pack(library, "key", tmp_path, keys.SIGNING) == signed
    _unpack(tmp_path, signed.name, keys.REQUIRING, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "lib.so",
        "manifest.json",
        "manifest.sig",
    ]

    stranger = pack(library, "key", tmp_path, keys.STRANGER)

    with pytest.raises(WorkError, match="refused: its signature is not by a trusted key"):
        _unpack(tmp_path, stranger.name, keys.REQUIRING, tmp_path / "refused")


def test_an_unsigned_library_is_refused_where_signatures_are_required(
    library: Path, tmp_path: Path
) -> None:
    """Clients load it as code."""
    archive = pack(library, "key", tmp_path)

    _unpack(tmp_path, archive.name, keys.CHECKING, tmp_path / "out")
    with pytest.raises(WorkError, match="it has no signature"):
        _unpack(tmp_path, archive.name, keys.REQUIRING, tmp_path / "refused")


def _unpack(data_dir: Path, name: str, policy: SignaturePolicy, out: Path) -> None:
    out.mkdir()
    unpack(io.BytesIO((archives_of(data_dir) / name).read_bytes()), out, policy)

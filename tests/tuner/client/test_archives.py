"""An archive is unpacked into the folder of a library, and nowhere else."""

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import pytest

from tests.tuner.library import small_library as small
from tuner.client.downloads import unpack
from tuner.errors import WorkError

CONTENT = b"kernels"


def described(digest: str = sha256(CONTENT).hexdigest()) -> bytes:
    """Return the manifest of a library with one file."""
    whole = small.described(files={"lib.so": digest})
    return json.dumps(asdict(whole)).encode()


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    """Pack members into an archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed


def file(name: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    """Return a regular file."""
    return tarfile.TarInfo(name), content


def link(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    """Return a link."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


@pytest.mark.parametrize("prefix", ["", "./", "0123abcd/"])
def test_a_library_is_unpacked(tmp_path: Path, prefix: str) -> None:
    """The name of the packed folder does not matter."""
    packed = archive(file(f"{prefix}lib.so", CONTENT), file(f"{prefix}manifest.json", described()))

    unpack(packed, tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["lib.so", "manifest.json"]


WHOLE = (file("lib.so", CONTENT), file("manifest.json", described()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: archive(*WHOLE, file("../evil", b"x")),
        lambda: archive(*WHOLE, file("/tmp/evil", b"x")),
        lambda: archive(*WHOLE, file("deep/evil", b"x")),
        lambda: archive(*WHOLE, link("evil", "/etc/passwd", tarfile.SYMTYPE)),
        lambda: archive(*WHOLE, link("evil", "lib.so", tarfile.LNKTYPE)),
        lambda: archive(*WHOLE, link("evil", "", tarfile.FIFOTYPE)),
        lambda: archive(WHOLE[0]),
        lambda: archive(WHOLE[1]),
        lambda: archive(WHOLE[0], file("manifest.json", described("0" * 64))),
        lambda: archive(WHOLE[0], file("manifest.json", b"{")),
        lambda: io.BytesIO(archive(*WHOLE).getvalue()[:100]),
        lambda: io.BytesIO(b"no archive"),
    ],
    ids=[
        "up",
        "absolute",
        "deep",
        "symlink",
        "hardlink",
        "pipe",
        "no-manifest",
        "no-file",
        "altered",
        "torn",
        "cut",
        "text",
    ],
)
def test_anything_else_is_rejected(tmp_path: Path, make: Callable[[], io.BytesIO]) -> None:
    """The error is one line, and no file is written outside the folder."""
    folder = tmp_path / "folder"
    folder.mkdir()

    with pytest.raises(WorkError):
        unpack(make(), folder)

    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert not (folder / "evil").exists()

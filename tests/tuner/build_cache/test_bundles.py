"""Export and import of bundles."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.tuner.build_cache.entries import CODE, WEIGHTS, key, large, names, put
from tests.tuner.build_cache.privileges import without_privilege
from tuner.build_cache import bundles, index
from tuner.build_cache.cache import Cache
from tuner.errors import RequestError, WorkError


@pytest.fixture
def bundle(cache: Cache, tmp_path: Path) -> Path:
    """A bundle of three entries, the first without a large file."""
    for number in range(3):
        put(cache, key(number), large) if number else put(cache, key(number))
    entries = index.entries(cache.local)
    assert bundles.export(cache.local, tmp_path / "bundle.tar", entries) == 3
    return tmp_path / "bundle.tar"


@pytest.fixture
def other(tmp_path: Path) -> Cache:
    """An empty store of another machine."""
    return Cache(tmp_path / "other")


def test_exported_entries_can_be_imported(bundle: Path, cache: Cache, other: Cache) -> None:
    """Each file comes back unchanged; a second import adds nothing."""
    result = bundles.import_(other.local, bundle)

    assert (result.added, result.known, result.refused, result.truncated) == (3, 0, [], False)
    assert names(other.root) == names(cache.root)
    entry = other.find(key(1))
    assert entry is not None
    assert (entry.read("code.o"), entry.read("weights.bin")) == (CODE, WEIGHTS)
    again = bundles.import_(other.local, bundle)
    assert (again.added, again.known) == (0, 3)


def test_a_bundle_is_the_same_each_time(bundle: Path, cache: Cache, tmp_path: Path) -> None:
    """It holds neither names of users nor times of files."""
    bundles.export(cache.local, tmp_path / "again.tar", index.entries(cache.local))

    assert (tmp_path / "again.tar").read_bytes() == bundle.read_bytes()


def test_exporting_does_not_count_as_a_use(cache: Cache, tmp_path: Path) -> None:
    """The time of the last use stays."""
    path = put(cache, key())
    os.utime(path, (1e9, 1e9))

    bundles.export(cache.local, tmp_path / "bundle.tar", index.entries(cache.local))

    assert path.stat().st_mtime == 1e9


def test_a_damaged_entry_is_not_exported(cache: Cache, tmp_path: Path) -> None:
    """It is dropped, as by a look-up."""
    put(cache, key(0))
    os.truncate(put(cache, key(1)), 300)

    assert bundles.export(cache.local, tmp_path / "b.tar", index.entries(cache.local)) == 1


def ends(bundle: Path) -> list[int]:
    """Return the offset at which each entry of a bundle is complete."""
    with tarfile.open(bundle) as whole:
        return [member.offset_data + member.size for member in whole if "blob" not in member.name]


@pytest.mark.parametrize("n_whole", [1, 2])
@pytest.mark.parametrize("more", [0, 700, 100_000])
def test_whole_entries_of_a_truncated_bundle_are_imported(
    bundle: Path, other: Cache, n_whole: int, more: int
) -> None:
    """The result says that it is truncated."""
    offsets = ends(bundle)
    os.truncate(bundle, min(offsets[n_whole - 1] + more, offsets[n_whole] - 1))

    result = bundles.import_(other.local, bundle)

    assert (result.truncated, result.added) == (True, n_whole)
    entries = [other.find(key(number)) for number in range(3)]
    assert [entry.read("code.o") for entry in entries if entry] == [CODE] * n_whole


def test_a_bundle_with_nothing_whole_in_it_is_a_wrong_request(bundle: Path, other: Cache) -> None:
    """It cannot be told from a file that is not a bundle."""
    os.truncate(bundle, ends(bundle)[0] - 1)

    with pytest.raises(RequestError, match="cut off"):
        bundles.import_(other.local, bundle)
    assert names(other.root) == []


@pytest.mark.parametrize("offset", [600, 2_000, 500_000])
def test_one_changed_bit_refuses_one_entry(bundle: Path, other: Cache, offset: int) -> None:
    """The other entries are imported."""
    content = bytearray(bundle.read_bytes())
    content[offset] ^= 1
    bundle.write_bytes(content)

    result = bundles.import_(other.local, bundle)

    assert (result.added, len(result.refused)) == (2, 1)


def test_names_in_a_bundle_do_not_choose_paths(tmp_path: Path, other: Cache) -> None:
    """Members with forged names, links and invalid entries are refused, and write no file."""
    evil = tmp_path / "evil.tar"
    with tarfile.open(evil, "w") as bundle:
        for name in ("../out", "/tmp/out", "subgraph/../../out", f"subgraph/{'a' * 64}/x", "x"):
            member = tarfile.TarInfo(name)
            member.size = 3
            bundle.addfile(member, io.BytesIO(b"bad"))
        link = tarfile.TarInfo(f"subgraph/{'a' * 64}")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        bundle.addfile(link)
        forged = tarfile.TarInfo(f"subgraph/{'b' * 64}")
        forged.size = 3
        bundle.addfile(forged, io.BytesIO(b"bad"))
    before = names(tmp_path)

    result = bundles.import_(other.local, evil)

    assert len(result.refused) == 7
    assert names(tmp_path) == before


def test_an_entry_under_another_name_is_refused(cache: Cache, other: Cache, tmp_path: Path) -> None:
    """The digest in its name must be that of its key."""
    path = put(cache, key())
    with tarfile.open(tmp_path / "b.tar", "w") as bundle:
        bundle.add(path, f"subgraph/{'c' * 64}")

    result = bundles.import_(other.local, tmp_path / "b.tar")

    assert result.added == 0
    assert "another key" in result.refused[0]


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"not a tar file" * 100])
def test_another_file_is_not_a_bundle(tmp_path: Path, other: Cache, content: bytes) -> None:
    """It is a wrong request."""
    (tmp_path / "b.tar").write_bytes(content)

    with pytest.raises(RequestError, match="not a bundle"):
        bundles.import_(other.local, tmp_path / "b.tar")


def test_a_missing_bundle_is_a_wrong_request(tmp_path: Path, other: Cache) -> None:
    """So is a folder in which no bundle can be written."""
    with pytest.raises(RequestError, match="No such file"):
        bundles.import_(other.local, tmp_path / "b.tar")
    with pytest.raises(RequestError, match="cannot write"):
        bundles.export(other.local, tmp_path / "missing" / "b.tar", [])


def test_a_store_that_cannot_be_written_is_a_failure(bundle: Path, other: Cache) -> None:
    """Unlike a build, an import has no other result."""
    other.root.mkdir()
    other.root.chmod(0o555)

    with without_privilege(), pytest.raises(WorkError, match="Permission denied"):
        bundles.import_(other.local, bundle)

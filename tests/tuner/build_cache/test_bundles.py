"""Bundles carry entries to another store, and nothing else."""

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
    spots = index.spots(cache.local)
    assert bundles.export(cache.local, tmp_path / "bundle.tar", spots) == 3
    return tmp_path / "bundle.tar"


@pytest.fixture
def other(tmp_path: Path) -> Cache:
    """A store on another machine."""
    return Cache(tmp_path / "other")


def test_what_was_exported_can_be_imported(bundle: Path, cache: Cache, other: Cache) -> None:
    """The same files, and once only."""
    found = bundles.import_(other.local, bundle)

    assert (found.added, found.known, found.refused, found.truncated) == (3, 0, [], False)
    assert names(other.root) == names(cache.root)
    entry = other.find(key(1))
    assert entry is not None
    assert (entry.read("code.o"), entry.read("weights.bin")) == (CODE, WEIGHTS)
    again = bundles.import_(other.local, bundle)
    assert (again.added, again.known) == (0, 3)


def test_a_bundle_is_the_same_each_time(bundle: Path, cache: Cache, tmp_path: Path) -> None:
    """Neither names of users nor times of files are in it."""
    bundles.export(cache.local, tmp_path / "again.tar", index.spots(cache.local))

    assert (tmp_path / "again.tar").read_bytes() == bundle.read_bytes()


def test_exporting_is_no_use(cache: Cache, tmp_path: Path) -> None:
    """Upkeep still knows what nobody used."""
    path = put(cache, key())
    os.utime(path, (1e9, 1e9))

    bundles.export(cache.local, tmp_path / "bundle.tar", index.spots(cache.local))

    assert path.stat().st_mtime == 1e9


def test_a_damaged_entry_is_not_exported(cache: Cache, tmp_path: Path) -> None:
    """It is dropped, as whoever finds it drops it."""
    put(cache, key(0))
    os.truncate(put(cache, key(1)), 300)

    assert bundles.export(cache.local, tmp_path / "b.tar", index.spots(cache.local)) == 1


def ends(bundle: Path) -> list[int]:
    """Where each entry of a bundle is complete."""
    with tarfile.open(bundle) as whole:
        return [each.offset_data + each.size for each in whole if "blob" not in each.name]


@pytest.mark.parametrize("n_whole", [1, 2])
@pytest.mark.parametrize("more", [0, 700, 100_000])
def test_a_bundle_that_is_cut_off_gives_what_is_whole(
    bundle: Path, other: Cache, n_whole: int, more: int
) -> None:
    """And says so; what is taken is whole."""
    places = ends(bundle)
    os.truncate(bundle, min(places[n_whole - 1] + more, places[n_whole] - 1))

    found = bundles.import_(other.local, bundle)

    assert (found.truncated, found.added) == (True, n_whole)
    entries = [other.find(key(number)) for number in range(3)]
    assert [entry.read("code.o") for entry in entries if entry] == [CODE] * n_whole


def test_a_bundle_with_nothing_whole_in_it_is_a_wrong_request(bundle: Path, other: Cache) -> None:
    """Nobody can tell it from what is no bundle."""
    os.truncate(bundle, ends(bundle)[0] - 1)

    with pytest.raises(RequestError, match="cut off"):
        bundles.import_(other.local, bundle)
    assert names(other.root) == []


@pytest.mark.parametrize("place", [600, 2_000, 500_000])
def test_one_bit_refuses_an_entry_and_no_other(bundle: Path, other: Cache, place: int) -> None:
    """Which of them is told."""
    content = bytearray(bundle.read_bytes())
    content[place] ^= 1
    bundle.write_bytes(content)

    found = bundles.import_(other.local, bundle)

    assert (found.added, len(found.refused)) == (2, 1)


def test_names_in_a_bundle_choose_no_place(tmp_path: Path, other: Cache) -> None:
    """Nothing is written outside of the store, nor linked, nor made in it unseen."""
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

    found = bundles.import_(other.local, evil)

    assert len(found.refused) == 7
    assert names(tmp_path) == before


def test_an_entry_under_another_name_is_refused(cache: Cache, other: Cache, tmp_path: Path) -> None:
    """It belongs where its key says, and its bundle was tampered with."""
    path = put(cache, key())
    with tarfile.open(tmp_path / "b.tar", "w") as bundle:
        bundle.add(path, f"subgraph/{'c' * 64}")

    found = bundles.import_(other.local, tmp_path / "b.tar")

    assert found.added == 0
    assert "another key" in found.refused[0]


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"no tar at all" * 100])
def test_what_is_no_bundle_is_a_wrong_request(tmp_path: Path, other: Cache, content: bytes) -> None:
    """In one line."""
    (tmp_path / "b.tar").write_bytes(content)

    with pytest.raises(RequestError, match="no bundle"):
        bundles.import_(other.local, tmp_path / "b.tar")


def test_a_missing_bundle_is_a_wrong_request(tmp_path: Path, other: Cache) -> None:
    """As is a place where none can be written."""
    with pytest.raises(RequestError, match="No such file"):
        bundles.import_(other.local, tmp_path / "b.tar")
    with pytest.raises(RequestError, match="cannot write"):
        bundles.export(other.local, tmp_path / "missing" / "b.tar", [])


def test_a_store_that_cannot_be_written_is_a_failure(bundle: Path, other: Cache) -> None:
    """Unlike in a build nothing else was asked for."""
    other.root.mkdir()
    other.root.chmod(0o555)

    with without_privilege(), pytest.raises(WorkError, match="Permission denied"):
        bundles.import_(other.local, bundle)

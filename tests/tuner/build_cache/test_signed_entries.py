"""Entries of a shared store and of bundles: signed, unsigned, by a stranger, altered."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tuner.build_cache.entries import WEIGHTS, key, large, made
from tests.tuner.library import signing_keys as keys
from tuner.build_cache import bundles, index
from tuner.build_cache.cache import Cache
from tuner.library.signatures import NO_POLICY, SignaturePolicy

Open = Callable[[str, SignaturePolicy], Cache]


@pytest.fixture
def machine(tmp_path: Path, warnings: list[str]) -> Open:
    """Function that opens the cache of a machine, with the store that all share."""

    def open_(name: str, signatures: SignaturePolicy) -> Cache:
        url = f"file://{tmp_path / 'shared'}"
        return Cache(tmp_path / name, url, signatures, warn=warnings.append)

    return open_


def test_signed_entries_are_shared(machine: Open, warnings: list[str]) -> None:
    """With their large files."""
    made(machine("writer", keys.SIGNING), key(), large).close()

    entry = machine("reader", keys.REQUIRING).find(key())

    assert entry is not None
    assert entry.read("weights.bin") == WEIGHTS
    assert not warnings


@pytest.mark.parametrize(
    ("writer", "why"),
    [(NO_POLICY, "it has no signature"), (keys.STRANGER, "not by a trusted key")],
)
def test_other_entries_are_refused(
    machine: Open, warnings: list[str], writer: SignaturePolicy, why: str
) -> None:
    """They are made again, and then have a signature for the others."""
    made(machine("writer", writer), key(), large).close()

    assert machine("reader", keys.REQUIRING).find(key()) is None
    assert "is refused" in warnings[0]
    assert why in warnings[0]

    made(machine("builder", SignaturePolicy(keys.OURS, keys.REQUIRING.trusted, True)), key(), large)
    assert machine("reader", keys.REQUIRING).find(key()) is not None


def test_unsigned_entries_are_accepted_unless_signatures_are_required(machine: Open) -> None:
    """So machines can get their keys one after the other."""
    made(machine("writer", NO_POLICY), key(), large).close()

    assert machine("reader", keys.CHECKING).find(key()) is not None


def test_an_altered_entry_is_refused(machine: Open, tmp_path: Path, warnings: list[str]) -> None:
    """Its author can correct all checksums, but not the signature."""
    made(machine("writer", keys.SIGNING), key(), large).close()
    made(machine("attacker", NO_POLICY), key(1), large).close()
    shared = Cache(tmp_path / "shared").local
    path = shared.path_of(key().kind, key().digest)
    other = Cache(tmp_path / "other")
    with made(other, key(), _evil):
        path.write_bytes(other.local.path_of(key().kind, key().digest).read_bytes())

    assert machine("reader", keys.REQUIRING).find(key()) is None
    assert "is refused: it has no signature" in warnings[0]
    assert Cache(tmp_path / "plain", f"file://{tmp_path / 'shared'}").find(key()) is not None


def _evil(folder: Path) -> dict[str, int]:
    (folder / "code.o").write_bytes(b"evil")
    return {}


def test_garbage_collection_leaves_signatures(machine: Open, tmp_path: Path) -> None:
    """A folder may be a store of several machines and the cache of one."""
    made(machine("writer", keys.SIGNING), key(), large).close()
    shared = Cache(tmp_path / "shared").local
    folder = shared.path_of(key().kind, key().digest).parent

    assert len(list(index.entries(shared))) == 1
    assert len(list(folder.glob("*.sig"))) == 1


@pytest.mark.parametrize(
    ("writer", "reader", "n_added"),
    [
        (keys.SIGNING, keys.REQUIRING, 2),
        (keys.SIGNING, NO_POLICY, 2),
        (NO_POLICY, keys.REQUIRING, 0),
        (NO_POLICY, keys.CHECKING, 2),
        (keys.STRANGER, keys.REQUIRING, 0),
        (keys.STRANGER, keys.CHECKING, 0),
    ],
)
def test_bundles_are_imported_by_their_signatures(
    tmp_path: Path, writer: SignaturePolicy, reader: SignaturePolicy, n_added: int
) -> None:
    """Each entry has one."""
    ours, theirs = Cache(tmp_path / "ours"), Cache(tmp_path / "theirs")
    made(ours, key(0), large).close()
    made(ours, key(1)).close()
    bundle = tmp_path / "bundle.tar"
    bundles.export(ours.local, bundle, index.entries(ours.local), signatures=writer)

    imported = bundles.import_(theirs.local, bundle, signatures=reader)

    assert (imported.added, len(imported.refused)) == (n_added, 2 - n_added)
    assert not imported.truncated


def test_a_signature_does_not_fit_another_entry(tmp_path: Path) -> None:
    """A bundle in which they were exchanged is refused."""
    ours, theirs = Cache(tmp_path / "ours"), Cache(tmp_path / "theirs")
    for number in range(2):
        made(ours, key(number)).close()
    bundle, mixed = tmp_path / "bundle.tar", tmp_path / "mixed.tar"
    bundles.export(ours.local, bundle, index.entries(ours.local), signatures=keys.SIGNING)
    with tarfile.open(bundle) as source, tarfile.open(mixed, "w") as target:
        members = source.getmembers()
        names = [member.name for member in members if member.name.endswith(".sig")]
        for member in members:
            if member.name in names:
                content = source.extractfile(names[1 - names.index(member.name)])
            else:
                content = source.extractfile(member)
            target.addfile(member, content)

    imported = bundles.import_(theirs.local, mixed, signatures=keys.REQUIRING)

    assert (imported.added, len(imported.refused)) == (0, 2)

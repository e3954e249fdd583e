"""Bundles: entries in one file, for machines without a network."""

import os
import re
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tuner.build_cache import headers, index, packing
from tuner.build_cache.entries import verify_blob_file
from tuner.build_cache.headers import Damaged, Newer
from tuner.build_cache.index import Spot
from tuner.build_cache.local import LocalTier
from tuner.build_cache.packing import Packed
from tuner.errors import RequestError, WorkError

# The last member: without it a bundle is cut off, which the form of the file may not show.
_END = "end"
_ENTRY = re.compile(r"([a-z]{1,32})/([0-9a-f]{64})")
_BLOB = re.compile(r"[a-z]{1,32}/([0-9a-f]{64}\.[0-9a-f]{32}\.blob)")

Progress = Callable[[int], None]


@dataclass
class Imported:
    """What came of an import.

    Attributes:
        added: Entries that are new here.
        known: Entries that were here.
        refused: Why others were not taken, a line each.
        truncated: Whether the bundle ended in the middle.
    """

    added: int
    known: int
    refused: list[str]
    truncated: bool


def export(
    local: LocalTier, file: Path, spots: Iterable[Spot], progress: Progress | None = None
) -> int:
    """Write entries to a bundle, which appears when it is whole; return how many.

    Those that are damaged are dropped with a warning, as by a look-up.

    Raises:
        RequestError: If there can be no such file.
        WorkError: If it cannot be written; nothing is left behind.
    """
    n_written = 0
    with _whole(file) as stream, tarfile.open(fileobj=stream, mode="w") as bundle:
        for spot in sorted(spots, key=lambda each: (each.kind, each.digest)):
            n_written += _add(local, spot, bundle)
            if progress is not None:
                progress(n_written)
        bundle.addfile(tarfile.TarInfo(_END))
    return n_written


def import_(local: LocalTier, file: Path, progress: Progress | None = None) -> Imported:
    """Take the entries of a bundle that are not here, each verified.

    Names in a bundle choose no place: an entry goes where its key belongs. Of a bundle that
    is cut off, what is whole is taken.

    Raises:
        RequestError: If the file cannot be read or is no bundle.
        WorkError: If the store cannot be written.
    """
    imported = Imported(0, 0, [], truncated=True)
    try:
        with file.open("rb") as stream, tempfile.TemporaryDirectory(prefix="tuner-") as folder:
            _take_all(local, stream, Path(folder), imported, progress)
    except tarfile.TarError as error:
        if not imported.added + imported.known + len(imported.refused):
            raise RequestError(f"{file} is no bundle, or cut off: {error}") from error
    except OSError as error:
        what = f"cannot read {file}" if error.filename == str(file) else "cannot import"
        raise (RequestError if error.filename == str(file) else WorkError)(
            f"{what}: {error.strerror}"
        ) from error
    return imported


def _add(local: LocalTier, spot: Spot, bundle: tarfile.TarFile) -> bool:
    header = index.header_of(spot)
    if header is None or header.key.digest != spot.digest:
        return False
    # Held, so that nothing of it goes while it is copied.
    entry = local.find(header.key, used=False)
    if entry is None:
        return False
    with entry:
        for blob in header.blobs.values():
            path = spot.path.with_name(headers.blob_name(spot.digest, blob))
            _add_file(bundle, f"{spot.kind}/{path.name}", path)
        # Last: who finds it has read all that belongs to it.
        _add_file(bundle, f"{spot.kind}/{spot.digest}", spot.path)
    return True


def _add_file(bundle: tarfile.TarFile, name: str, path: Path) -> None:
    with path.open("rb") as stream:
        member = tarfile.TarInfo(name)
        member.size, member.mode = os.fstat(stream.fileno()).st_size, 0o644
        bundle.addfile(member, stream)


def _take_all(
    local: LocalTier,
    stream: IO[bytes],
    folder: Path,
    imported: Imported,
    progress: Progress | None,
) -> None:
    with tarfile.open(fileobj=stream, mode="r|") as bundle:
        for member in bundle:
            if member.name == _END:
                imported.truncated = False
                return
            content = bundle.extractfile(member) if member.isreg() else None
            entry, blob = _ENTRY.fullmatch(member.name), _BLOB.fullmatch(member.name)
            if content is None or member.issparse() or not (entry or blob):
                imported.refused.append(f"{member.name!r} is nothing that belongs in a bundle")
            elif blob:
                with (folder / blob[1]).open("wb") as place:
                    shutil.copyfileobj(content, place)
            elif entry:
                _take(local, entry[2], content.read(), folder, imported)
            if progress is not None:
                progress(imported.added + imported.known)


def _take(local: LocalTier, digest: str, data: bytes, folder: Path, imported: Imported) -> None:
    try:
        packed = _packed(digest, data, folder)
    except (Damaged, Newer) as error:
        imported.refused.append(f"entry {digest[:12]} is refused: {error}")
        return
    known = local.find(packed.header.key, used=False)
    if known is not None:
        known.close()
        imported.known += 1
        return
    local.commit(packed).close()
    imported.added += 1
    for path in packed.blobs.values():
        path.unlink()


def _packed(digest: str, data: bytes, folder: Path) -> Packed:
    header, _ = headers.read_header(data)
    if header.key.digest != digest:
        raise Damaged("it was made for another key")
    packing.unpack(data, header.key)
    blobs = {}
    for name, file in header.blobs.items():
        blobs[name] = folder / headers.blob_name(digest, file)
        if not blobs[name].is_file():
            raise Damaged(f"{name} is missing")
        verify_blob_file(blobs[name], name, file)
    return Packed(header, data, blobs)


@contextmanager
def _whole(file: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its place when it is complete."""
    beside = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    try:
        stream = beside.open("xb")
    except OSError as error:
        raise RequestError(f"cannot write {file}: {error.strerror}") from error
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(file)
    except OSError as error:
        raise WorkError(f"cannot write {file}: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)

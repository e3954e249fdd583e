"""Bundles: entries in one tar file, for machines without a network."""

import io
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
from tuner.build_cache.headers import DamagedEntryError, NewerFormatError
from tuner.build_cache.index import IndexedEntry
from tuner.build_cache.local import LocalTier
from tuner.build_cache.packing import Packed
from tuner.errors import RequestError, WorkError
from tuner.library.signatures import NO_POLICY, SignaturePolicy, Unsigned

# Name of the last member; without it a bundle is cut off, which tar itself may not notice.
_END = "end"
_ENTRY_NAME = re.compile(r"([a-z]{1,32})/([0-9a-f]{64})")
_SIGNATURE_NAME = re.compile(r"[a-z]{1,32}/([0-9a-f]{64}\.[0-9a-f]{32}\.sig)")
_MAX_SIGNATURE_BYTES = 1024
_BLOB_NAME = re.compile(r"[a-z]{1,32}/([0-9a-f]{64}\.[0-9a-f]{32}\.blob)")

Progress = Callable[[int], None]


@dataclass
class Imported:
    """The result of an import.

    Attributes:
        added: Number of entries added to the store.
        known: Number of entries that the store had.
        refused: Reason for each entry that was refused, one line each.
        truncated: True if the bundle is cut off.
    """

    added: int
    known: int
    refused: list[str]
    truncated: bool


def export(
    local: LocalTier,
    file: Path,
    entries: Iterable[IndexedEntry],
    progress: Progress | None = None,
    signatures: SignaturePolicy = NO_POLICY,
) -> int:
    """Write entries to a bundle, which appears when it is complete; return their number.

    Damaged entries are dropped with a warning, as by a look-up. Entries are signed if there is a
    key.

    Raises:
        RequestError: If the file cannot be created.
        WorkError: If it cannot be written; nothing is left behind.
    """
    n_written = 0
    with _atomic_file(file) as stream, tarfile.open(fileobj=stream, mode="w") as bundle:
        for entry in sorted(entries, key=lambda entry: (entry.kind, entry.digest)):
            n_written += _add(local, entry, bundle, signatures)
            if progress is not None:
                progress(n_written)
        bundle.addfile(tarfile.TarInfo(_END))
    return n_written


def import_(
    local: LocalTier,
    file: Path,
    progress: Progress | None = None,
    signatures: SignaturePolicy = NO_POLICY,
) -> Imported:
    """Import the entries of a bundle that the store does not have, each verified.

    Names in a bundle do not choose paths: the path of an entry follows from its key. The whole
    entries of a bundle that is cut off are imported.

    Raises:
        RequestError: If the file cannot be read or is not a bundle.
        WorkError: If the store cannot be written.
    """
    imported = Imported(0, 0, [], truncated=True)
    try:
        with file.open("rb") as stream, tempfile.TemporaryDirectory(prefix="tuner-") as folder:
            source = _Source(Path(folder), signatures)
            _import_all(local, stream, source, imported, progress)
    except tarfile.TarError as error:
        if not imported.added + imported.known + len(imported.refused):
            raise RequestError(f"{file} is not a bundle, or cut off: {error}") from error
    except OSError as error:
        what = f"cannot read {file}" if error.filename == str(file) else "cannot import"
        raise (RequestError if error.filename == str(file) else WorkError)(
            f"{what}: {error.strerror}"
        ) from error
    return imported


@dataclass(frozen=True)
class _Source:
    """Files of a bundle that come before an entry.

    Attributes:
        folder: Folder of the blobs and signatures.
        signatures: Signatures that are accepted.
    """

    folder: Path
    signatures: SignaturePolicy


def _add(
    local: LocalTier, entry: IndexedEntry, bundle: tarfile.TarFile, signatures: SignaturePolicy
) -> bool:
    header = index.header_of(entry)
    if header is None or header.key.digest != entry.digest:
        return False
    # Held open, so that none of its files is removed while it is copied.
    held = local.find(header.key, used=False)
    if held is None:
        return False
    with held:
        for blob in header.blobs.values():
            path = entry.path.with_name(headers.blob_name(entry.digest, blob))
            with path.open("rb") as stream:
                _add_content(
                    bundle, f"{entry.kind}/{path.name}", stream, os.fstat(stream.fileno()).st_size
                )
        data = entry.path.read_bytes()
        signature = signatures.sign("entry", data)
        if signature is not None:
            name = f"{entry.kind}/{headers.signature_name(entry.digest, data)}"
            _add_content(bundle, name, io.BytesIO(signature), len(signature))
        # Last: a reader that meets it has read its blobs.
        _add_content(bundle, f"{entry.kind}/{entry.digest}", io.BytesIO(data), len(data))
    return True


def _add_content(bundle: tarfile.TarFile, name: str, stream: IO[bytes], n_bytes: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = n_bytes, 0o644
    bundle.addfile(member, stream)


def _import_all(
    local: LocalTier,
    stream: IO[bytes],
    source: _Source,
    imported: Imported,
    progress: Progress | None,
) -> None:
    with tarfile.open(fileobj=stream, mode="r|") as bundle:
        for member in bundle:
            if member.name == _END:
                imported.truncated = False
                return
            content = bundle.extractfile(member) if member.isreg() else None
            entry, blob = _ENTRY_NAME.fullmatch(member.name), _BLOB_NAME.fullmatch(member.name)
            signature = _SIGNATURE_NAME.fullmatch(member.name)
            if content is None or member.issparse() or not (entry or blob or signature):
                imported.refused.append(f"{member.name!r} does not belong in a bundle")
            elif blob:
                with (source.folder / blob[1]).open("wb") as file:
                    shutil.copyfileobj(content, file)
            elif signature:
                # A longer one is refused when it is checked.
                (source.folder / signature[1]).write_bytes(content.read(_MAX_SIGNATURE_BYTES))
            elif entry:
                _import_entry(local, entry[2], content.read(), source, imported)
            if progress is not None:
                progress(imported.added + imported.known)


def _import_entry(
    local: LocalTier, digest: str, data: bytes, source: _Source, imported: Imported
) -> None:
    path = source.folder / headers.signature_name(digest, data)
    try:
        signature = path.read_bytes() if path.is_file() else None
        source.signatures.check("entry", data, signature)
        header, _ = headers.read_header(data)
        if header.key.digest != digest:
            raise DamagedEntryError("it was made for another key")
        packing.unpack(data, header.key)
        blobs = {}
        for name, file in header.blobs.items():
            blobs[name] = source.folder / headers.blob_name(digest, file)
            if not blobs[name].is_file():
                raise DamagedEntryError(f"{name} is missing")
            verify_blob_file(blobs[name], name, file)
        packed = Packed(header, data, blobs)
    except (DamagedEntryError, NewerFormatError, Unsigned) as error:
        imported.refused.append(f"entry {digest[:12]} is refused: {error}")
        return
    present = local.find(packed.header.key, used=False)
    if present is not None:
        present.close()
        imported.known += 1
        return
    local.commit(packed).close()
    imported.added += 1
    for path in packed.blobs.values():
        path.unlink()


@contextmanager
def _atomic_file(file: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file, and rename it to ``file`` when it is complete."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    try:
        with _create(temporary, file) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError as error:
        raise WorkError(f"cannot write {file}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _create(temporary: Path, file: Path) -> IO[bytes]:
    try:
        return temporary.open("xb")
    except OSError as error:
        raise RequestError(f"cannot write {file}: {error.strerror}") from error

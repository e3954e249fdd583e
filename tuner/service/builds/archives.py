"""Archives of libraries, with the same bytes for the same library."""

import gzip
import hashlib
import os
import tarfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tuner.errors import RequestError, WorkError
from tuner.files.atomic_files import atomic_file
from tuner.library.manifest import MANIFEST, parse
from tuner.library.signatures import NO_POLICY, SIGNATURE, SignaturePolicy, sign_library

_CHUNK_BYTES = 1 << 20
# As the names of downloads have them.
_N_KEY_CHARS = 12


@dataclass(frozen=True)
class Archive:
    """An archive file of the data directory."""

    name: str
    sha256: str
    n_bytes: int


def archives_of(data_dir: Path) -> Path:
    """Return the folder of the archives."""
    return data_dir / "archives"


def pack(
    library: Path, key: str, data_dir: Path, signatures: SignaturePolicy = NO_POLICY
) -> Archive:
    """Pack the files of a library into ``KEY.tar.gz``, in a folder named by the key, and sign it.

    An existing archive is kept if it is undamaged and signed as a new one would be.

    Raises:
        WorkError: If it cannot be written; nothing is left behind.
    """
    path = archives_of(data_dir) / f"{key}.tar.gz"
    try:
        with suppress(FileNotFoundError):
            # Retention leaves what is new.
            os.utime(path)
        folder = f"library-{key[:_N_KEY_CHARS]}"
        if not _is_good(path, folder, signatures):
            sign_library(library, signatures)
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without a name and a time, which would differ between two runs.
            with atomic_file(path) as stream, gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed:
                _add_all(library, packed, folder)
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        return Archive(path.name, sha256, path.stat().st_size)
    except OSError as error:
        raise WorkError(f"cannot write {path.name}: {error.strerror or error}") from error


def _is_good(path: Path, folder: str, signatures: SignaturePolicy) -> bool:
    """Return whether a folder in an archive has the files of its manifest and its signature."""
    folders: set[str] = set()
    digests: dict[str, str] = {}
    small: dict[str, bytes] = {}
    try:
        with gzip.open(path) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is None:
                    return False
                *parents, name = PurePosixPath(member.name).parts
                folders.add("/".join(parents))
                if name in (MANIFEST, SIGNATURE):
                    small[name] = content.read()
                else:
                    digest = hashlib.sha256()
                    while chunk := content.read(_CHUNK_BYTES):
                        digest.update(chunk)
                    digests[name] = digest.hexdigest()
            # To its end, where gzip has a checksum of all that is not in a file of the library.
            while packed.read(_CHUNK_BYTES):
                pass
        described = parse(small[MANIFEST], path.name)
    except (OSError, EOFError, KeyError, zlib.error, tarfile.TarError, RequestError):
        return False
    signature = signatures.sign("library", small[MANIFEST])
    is_complete = digests == described.files and small.get(SIGNATURE) == signature
    return is_complete and folders == {folder}


def _add_all(library: Path, packed: gzip.GzipFile, folder: str) -> None:
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted(library.iterdir()):
            member = tarfile.TarInfo(f"{folder}/{file.name}")
            member.mode, member.mtime = 0o644, 0
            with open(file, "rb", opener=_open_itself) as stream:
                member.size = os.fstat(stream.fileno()).st_size
                archive.addfile(member, stream)


def _open_itself(path: str, flags: int) -> int:
    """Open a file, but not what a symbolic link points to."""
    return os.open(path, flags | os.O_NOFOLLOW)

"""Downloads of libraries, which are resumed, verified, and replace a folder at once."""

import hashlib
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

import httpx

from tuner.client.errors import ConnectError, ServerError, ServiceError
from tuner.client.transport import Transport, delay_secs, is_transient
from tuner.errors import RequestError, WorkError
from tuner.library import manifest as manifests
from tuner.library.signatures import NO_POLICY, SignaturePolicy, check_library

#: Callback that gets the bytes received so far and the size of the file; 0 while it is unknown.
Received = Callable[[int, int], None]

_MAX_FAILURES = 6
_CHUNK_BYTES = 1 << 20


def fetch(
    transport: Transport, path: str, params: dict[str, int], stream: IO[bytes], received: Received
) -> str:
    """Download a file, resume after broken connections, and return its SHA-256.

    Args:
        transport: Connection to the service.
        path: Path of the file on the service.
        params: Parameters of the query.
        stream: Empty stream, opened for reading and writing.
        received: Callback for the progress.

    Raises:
        ServiceError: If the file does not exist, arrives damaged, or connections keep breaking.
    """
    etag, n_failures = "", 0
    while True:
        before = stream.seek(0, 2)
        try:
            etag = _fetch_rest(transport, path, params, stream, etag, received)
            break
        except _BrokenDownload as broken:
            etag, error = broken.etag, broken.error
        except ServiceError as failure:
            error = failure
        if not is_transient(error):
            raise error
        n_failures = 0 if stream.tell() > before else n_failures + 1
        if n_failures >= _MAX_FAILURES:
            raise error
        time.sleep(delay_secs(n_failures, error.retry_secs))
    hashed = hashlib.sha256()
    stream.seek(0)
    while chunk := stream.read(_CHUNK_BYTES):
        hashed.update(chunk)
    digest = hashed.hexdigest()
    expected = etag.removeprefix("W/").strip('"')
    if expected and digest != expected:
        raise ServerError(f"the library arrived damaged: its sha256 is {digest}, not {expected}")
    return digest


def unpack(archive: IO[bytes], folder: Path, signatures: SignaturePolicy = NO_POLICY) -> None:
    """Unpack the files of a library from the folder of its manifest in the archive.

    Raises:
        WorkError: If the archive is not a library, has files elsewhere, differs from its
            manifest, or its signature is refused.
    """
    archive.seek(0)
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            members = tar.getmembers()
            root = _root_of(members)
            for member in members:
                path = PurePosixPath(member.name)
                if member.isdir():
                    continue
                if path.parent != root or not member.isfile():
                    raise WorkError(f"the archive has {member.name!r}, not a file of a library")
                # Write the content of a member, without its mode and owner. The filter of tarfile
                # came with Python 3.11.4, and Debian 12 has 3.11.2.
                content = tar.extractfile(member)
                if content is None:
                    raise tarfile.ExtractError(f"{member.name!r} has no content")
                with content, (folder / path.name).open("wb") as file:
                    shutil.copyfileobj(content, file)
        manifests.verify(folder, manifests.read(folder))
        check_library(folder, signatures)
    except (tarfile.TarError, EOFError, RequestError) as error:
        raise WorkError(f"the download cannot be used: {error}") from error


def _root_of(members: list[tarfile.TarInfo]) -> PurePosixPath:
    for member in members:
        path = PurePosixPath(member.name)
        if path.name == manifests.MANIFEST:
            return path.parent
    raise WorkError(f"the download is not a library: it has no {manifests.MANIFEST}")


class _BrokenDownload(Exception):  # noqa: N818  never leaves this module
    """A broken connection, with the ETag of the file that it sent."""

    def __init__(self, etag: str, error: ServiceError) -> None:
        super().__init__()
        self.etag = etag
        self.error = error


def _fetch_rest(
    transport: Transport,
    path: str,
    params: dict[str, int],
    stream: IO[bytes],
    etag: str,
    received: Received,
) -> str:
    """Append the missing bytes, or start again if the file has changed; return its ETag."""
    n_bytes = stream.seek(0, 2)
    headers = {"accept-encoding": "identity"}
    if n_bytes and etag:
        headers |= {"range": f"bytes={n_bytes}-", "if-range": etag}
    try:
        with transport.stream("GET", path, params=params, headers=headers) as response:
            if response.status_code != httpx.codes.PARTIAL_CONTENT:
                n_bytes = 0
                stream.seek(0)
                stream.truncate()
            etag = response.headers.get("etag", "")
            length = response.headers.get("content-length", "")
            n_total = n_bytes + int(length) if length.isdecimal() else 0
            # Unbuffered, because a buffer is lost when the connection breaks.
            for chunk in response.iter_raw():
                stream.write(chunk)
                n_bytes += len(chunk)
                received(n_bytes, n_total)
    except ServiceError as error:
        if error.status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            stream.seek(0)
            stream.truncate()
            raise _BrokenDownload("", ConnectError(str(error), kind="broken")) from error
        raise _BrokenDownload(etag, error) from error
    return etag

"""Libraries out of a service: whole, verified, and never half of one in their place."""

import hashlib
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

import httpx

from tuner.client.errors import ConnectError, ServerError, ServiceError
from tuner.client.transport import Transport, delay_secs, is_passing
from tuner.errors import RequestError, WorkError
from tuner.library import manifest as manifests

#: Told how many bytes of all arrived; all are 0 while nobody knows.
Received = Callable[[int, int], None]

_MOST_FAILURES = 6
_CHUNK = 1 << 20


def fetch(
    transport: Transport, path: str, params: dict[str, int], stream: IO[bytes], told: Received
) -> str:
    """Download a file, taking it up again where a connection broke; return its sha256.

    Args:
        transport: The service.
        path: Of the file.
        params: Of the query.
        stream: Empty; read and written.
        told: Called as bytes arrive.

    Raises:
        ServiceError: If there is none, it arrives damaged, or connections keep breaking.
    """
    etag, n_failures = "", 0
    while True:
        before = stream.seek(0, 2)
        try:
            etag = _fetch_rest(transport, path, params, stream, etag, told)
            break
        except _Broken as broken:
            etag, error = broken.etag, broken.error
        except ServiceError as failed:
            error = failed
        if not is_passing(error):
            raise error
        n_failures = 0 if stream.tell() > before else n_failures + 1
        if n_failures >= _MOST_FAILURES:
            raise error
        time.sleep(delay_secs(n_failures, error.retry_secs))
    digest = _digest(stream)
    expected = etag.removeprefix("W/").strip('"')
    if expected and digest != expected:
        raise ServerError(f"the library arrived damaged: its sha256 is {digest}, not {expected}")
    return digest


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpack the files of a library beside its manifest, and nothing that lies elsewhere.

    Raises:
        WorkError: If it is no library, or its files are not those of its manifest.
    """
    archive.seek(0)
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            members = tar.getmembers()
            root = _root_of(members)
            for member in members:
                place = PurePosixPath(member.name)
                if member.isdir():
                    continue
                if place.parent != root or not member.isfile():
                    raise WorkError(f"the archive holds {member.name!r}, no file of a library")
                _write(tar, member, folder / place.name)
        manifests.verify(folder, manifests.read(folder))
    except (tarfile.TarError, EOFError, RequestError) as error:
        raise WorkError(f"what was downloaded is no library: {error}") from error


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write the content of a member, and take nothing else from it: neither mode nor owner.

    Python's own filter for that came with 3.11.4, and Debian 12 has 3.11.2.
    """
    content = tar.extractfile(member)
    if content is None:
        raise tarfile.ExtractError(f"{member.name!r} has no content")
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)


def _root_of(members: list[tarfile.TarInfo]) -> PurePosixPath:
    for member in members:
        place = PurePosixPath(member.name)
        if place.name == manifests.MANIFEST:
            return place.parent
    raise WorkError(f"what was downloaded is no library: it has no {manifests.MANIFEST}")


def _digest(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    stream.seek(0)
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


class _Broken(Exception):  # noqa: N818  never leaves this module
    """A connection broke on the way, after the answer named what it is part of."""

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
    told: Received,
) -> str:
    """Append what is missing, or begin anew if the file is another by now; return its ETag."""
    n_have = stream.seek(0, 2)
    headers = {"accept-encoding": "identity"}
    if n_have and etag:
        headers |= {"range": f"bytes={n_have}-", "if-range": etag}
    try:
        with transport.stream("GET", path, params=params, headers=headers) as response:
            if response.status_code != httpx.codes.PARTIAL_CONTENT:
                n_have = 0
                stream.seek(0)
                stream.truncate()
            etag = response.headers.get("etag", "")
            length = response.headers.get("content-length", "")
            n_all = n_have + int(length) if length.isdecimal() else 0
            # As it comes: what a larger piece would gather is lost where the connection breaks.
            for chunk in response.iter_raw():
                stream.write(chunk)
                n_have += len(chunk)
                told(n_have, n_all)
    except ServiceError as error:
        if error.status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            stream.seek(0)
            stream.truncate()
            raise _Broken("", ConnectError(str(error), kind="broken")) from error
        raise _Broken(etag, error) from error
    return etag

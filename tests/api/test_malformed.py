"""Malformed uploads: each is rejected or becomes a job, and the process survives."""

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.conftest import Served

_N_UPLOADS = 200
_TIMEOUT_SECS = 30.0
_N_CLIENTS = 8
_MODEL = bytes.fromhex("0808") + b':\x2a\x0a\x0f\x0a\x04data\x12\x01y"\x04Relu\x12\x04test' * 20
_FIELDS = ("target", "input", "trials", "seconds", "seed", "name", "zoo", "objective", "priority")
_NASTY = (
    b"",
    b"\x00",
    b"-1",
    b"1e999",
    b"nan",
    b"9" * 400,
    b"\xff\xfe",
    b"'; DROP TABLE job; --",
    b"../../../etc/passwd",
    b"upload:" + b"0" * 64 + b".onnx",
    b"data=1,3,99999999999999999999",
    b"{{7*7}}",
    b"\xed\xa0\x80",
    b"A" * 70_000,
)
Mutation = Callable[[random.Random, bytes], bytes]


@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
def test_no_malformed_upload_makes_the_service_fail(served: Served) -> None:
    """Cut bodies, flipped bytes, wrong boundaries, lengths and options, and damaged models."""
    host, _, port = str(served.client.base_url).removeprefix("http://").rstrip("/").partition(":")
    requests = [_malformed(random.Random(f"1-{number}")) for number in range(_N_UPLOADS)]
    with ThreadPoolExecutor(_N_CLIENTS) as clients:
        counts = Counter(clients.map(lambda request: _send((host, int(port)), request), requests))

    assert not [status for status in counts if status.startswith("5")], counts
    assert "timeout" not in counts
    assert sum(n for status, n in counts.items() if status.isdigit()) > _N_UPLOADS // 2, counts
    probe = b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    assert _send((host, int(port)), probe) == "200"
    assert [*(served.data_dir / "uploads").glob(".*")] == []
    assert [*(served.data_dir / "tmp").glob("*")] == []


def _malformed(drawn: random.Random) -> bytes:
    """Return the bytes of a request with a drawn mutation."""
    boundary = b"boundary"
    parts = [_file(drawn, boundary)] * drawn.choice((0, 1, 1, 1, 2))
    for _ in range(drawn.randrange(4)):
        name = drawn.choice(_FIELDS).encode()
        parts.append(_part(boundary, b'name="' + name + b'"', drawn.choice(_NASTY)))
    drawn.shuffle(parts)
    body = b"".join(parts) + b"--" + boundary + b"--\r\n"
    for mutate in drawn.sample(_MUTATIONS, drawn.randrange(3)):
        body = mutate(drawn, body)
    return _headers(drawn, boundary, body) + body


def _send(where: tuple[str, int], request: bytes) -> str:
    """Send raw bytes and return the status, or how the connection ended."""
    try:
        with socket.create_connection(where, timeout=_TIMEOUT_SECS) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(request)
            if _is_short(request):
                # The service waits for more bytes: disconnect, as a dying client does.
                return "left"
            start = b""
            while b"\r\n" not in start and (data := connection.recv(4096)):
                start += data
    except TimeoutError:
        return "timeout"
    except OSError:
        return "reset"
    return start[9:12].decode("latin-1") if start.startswith(b"HTTP/1.1 ") else "closed"


def _is_short(request: bytes) -> bool:
    """Return True if a request announces slightly more bytes than it has."""
    head, _, body = request.partition(b"\r\n\r\n")
    announced = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    return len(body) < announced <= len(body) + 100


def _file(drawn: random.Random, boundary: bytes) -> bytes:
    name = drawn.choice((b"a.onnx", b"a.onnx", b"a.pt2", b"", b"../../a.onnx", b'"', b"\xff.onnx"))
    model = drawn.choice(_MODELS)(drawn, _MODEL)
    return _part(boundary, b'name="model"; filename="' + name + b'"', model)


def _part(boundary: bytes, disposition: bytes, content: bytes) -> bytes:
    start = b"--" + boundary + b"\r\ncontent-disposition: form-data; " + disposition
    return start + b"\r\n\r\n" + content + b"\r\n"


def _headers(drawn: random.Random, boundary: bytes, body: bytes) -> bytes:
    length = drawn.choice((len(body),) * 8 + (len(body) + 100, max(len(body) - 100, 0), 10**15, -1))
    charset = drawn.choice((b"",) * 6 + (b"; charset=utf-7", b"; charset=nope", b"; charset=\xff"))
    kind = drawn.choice(
        (b"multipart/form-data; boundary=" + boundary + charset,) * 8
        + (b"multipart/form-data", b"application/json", b"multipart/form-data; boundary=", b"\x01")
    )
    key = drawn.choice((b"",) * 6 + (b"idempotency-key: " + b"k" * 300 + b"\r\n",))
    return (
        b"POST /api/v1/tune HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: "
        + kind
        + b"\r\ncontent-length: "
        + str(length).encode()
        + b"\r\n"
        + key
        + b"\r\n"
    )


def _cut(drawn: random.Random, body: bytes) -> bytes:
    return body[: drawn.randrange(len(body) + 1)]


def _flip(drawn: random.Random, body: bytes) -> bytes:
    flipped = bytearray(body)
    for _ in range(drawn.randrange(1, 20) if body else 0):
        flipped[drawn.randrange(len(flipped))] = drawn.randrange(256)
    return bytes(flipped)


def _insert(drawn: random.Random, body: bytes) -> bytes:
    at = drawn.randrange(len(body) + 1)
    return body[:at] + drawn.randbytes(drawn.randrange(1, 200)) + body[at:]


def _repeat(drawn: random.Random, body: bytes) -> bytes:
    start = drawn.randrange(len(body) + 1)
    return body[:start] + body[start : start + 300] * drawn.randrange(2, 50) + body[start:]


def _same(_drawn: random.Random, body: bytes) -> bytes:
    return body


def _empty(_drawn: random.Random, _body: bytes) -> bytes:
    return b""


def _pickle(_drawn: random.Random, body: bytes) -> bytes:
    return b"\x80\x04" + body


def _zip(_drawn: random.Random, body: bytes) -> bytes:
    return b"PK\x03\x04" + body


_MUTATIONS: tuple[Mutation, ...] = (_cut, _flip, _insert, _repeat, _same)
_MODELS: tuple[Mutation, ...] = (_same, _cut, _flip, _insert, _empty, _pickle, _zip)

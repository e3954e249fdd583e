"""Uploads that arrive at the same time share the disk and the places of their token."""

import contextlib
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace

import httpx

from api.settings import ApiSettings
from api.uploads.incoming import MAX_UPLOADS
from records.service.owners import tokens
from records.service.owners.quotas import Quotas
from tests.api.conftest import Served, serving
from tests.api.make import ONNX
from tests.waiting import wait_for
from tuner.settings.retention import RetentionSettings

AT = "/api/v1/tune"


@contextlib.contextmanager
def arriving(served: Served, n_bytes: int, secret: str = "", *, path: str = AT) -> Iterator[None]:
    """Announce an upload during the block, and send none of it."""
    where = (str(served.client.base_url.host), served.client.base_url.port or 0)
    token = f"authorization: Bearer {secret}\r\n" if secret else ""
    with socket.create_connection(where, timeout=20.0) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {n_bytes}\r\n{token}"
            "expect: 100-continue\r\n"
            "content-type: multipart/form-data; boundary=b\r\n\r\n".encode()
        )
        # Sent when the route reads the body, and so was admitted.
        assert connection.recv(12) == b"HTTP/1.1 100"
        yield


def is_admitted(served: Served, n_bytes: int) -> bool:
    """Return whether an upload may begin."""
    with contextlib.suppress(AssertionError), arriving(served, n_bytes):
        return True
    return False


def send(served: Served, secret: str = "", n_bytes: int = 100) -> httpx.Response:
    """Upload a model with a token."""
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    files = {"model": ("net.onnx", ONNX + b"\0" * n_bytes)}
    return served.client.post(AT, files=files, headers=headers)


def secrets_of(served: Served, *names: str) -> list[str]:
    """Make tokens with the scope submit."""
    with served.sessions.begin() as session:
        return [tokens.create_token(session, name, ["submit"])[1] for name in names]


def test_uploads_that_arrive_count_against_the_floor(quick: ApiSettings) -> None:
    """Each fits alone, and the second is refused before its body: together they would not fit."""
    free = shutil.disk_usage(quick.data_dir.parent).free
    # An upload is a temporary file and then a copy.
    n_bytes = int(0.3 * free)
    tight = replace(
        quick,
        max_upload_bytes=free,
        tuner=replace(quick.tuner, retention=RetentionSettings(min_free_disk=free // 4)),
    )
    with serving(tight) as served:
        with arriving(served, n_bytes):
            small = send(served)
            with socket.create_connection(
                (str(served.client.base_url.host), served.client.base_url.port or 0), timeout=20.0
            ) as second:
                second.sendall(
                    f"POST {AT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {n_bytes}\r\n"
                    "content-type: multipart/form-data; boundary=b\r\n\r\n".encode()
                )
                assert second.recv(12) == b"HTTP/1.1 503"
        # Once the server has noticed that the first was given up.
        wait_for(lambda: is_admitted(served, n_bytes))

    assert small.status_code == 202, small.text


def test_a_token_sends_a_few_uploads_at_a_time(quick: ApiSettings) -> None:
    """One more gets 429 with Retry-After, and other tokens are not affected."""
    with serving(replace(quick, require_tokens=True)) as served, contextlib.ExitStack() as stack:
        ada, bob = secrets_of(served, "ada", "bob")
        for _ in range(MAX_UPLOADS):
            stack.enter_context(arriving(served, 5_000_000, ada))
        refused, other = send(served, ada), send(served, bob)

    assert refused.status_code == 429, refused.text
    assert refused.json()["type"].endswith("busy")
    assert int(refused.headers["retry-after"]) > 0
    assert other.status_code == 202


def test_quotas_are_checked_before_a_body_is_received(quick: ApiSettings) -> None:
    """An upload that cannot fit is answered although none of it was sent; a repeated one fits."""
    quotas = Quotas(upload_mb=3, disk_mb=100)
    with serving(replace(quick, require_tokens=True, quotas=quotas)) as served:
        (ada,) = secrets_of(served, "ada")
        where = (str(served.client.base_url.host), served.client.base_url.port or 0)
        with socket.create_connection(where, timeout=20.0) as connection:
            connection.sendall(
                f"POST {AT} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {ada}\r\n"
                "content-length: 5000000\r\n"
                "content-type: multipart/form-data; boundary=b\r\n\r\n".encode()
            )
            assert connection.recv(12) == b"HTTP/1.1 403"
        headers = {"authorization": f"Bearer {ada}", "idempotency-key": "one"}
        files = {"model": ("net.onnx", ONNX + b"\0" * 2_500_000)}
        answers = [served.client.post(AT, files=files, headers=headers) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[1].json()["created"] is False


def test_a_log_counts_once_against_the_floor(quick: ApiSettings) -> None:
    """An import takes the place of its temporary file, and an upload that of a copy too."""
    free = shutil.disk_usage(quick.data_dir.parent).free
    tight = replace(
        quick,
        max_upload_bytes=free,
        tuner=replace(quick.tuner, retention=RetentionSettings(min_free_disk=free // 4)),
    )
    n_bytes = int(0.5 * free)
    with serving(tight) as served:
        assert not is_admitted(served, n_bytes)
        with arriving(served, n_bytes, path="/api/v1/records"):
            pass

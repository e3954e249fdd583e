"""Limits on bodies that do not arrive."""

import json
import socket

import pytest

from api.clients import limits
from api.settings import ApiSettings
from tests.api.conftest import serving


def test_a_body_that_stops_arriving_is_given_up(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body without a byte for a while gets 408; its part is removed and others are served."""
    monkeypatch.setattr(limits, "_IDLE_TIMEOUT_SECS", 0.3)
    with serving(quick) as served:
        where = (str(served.client.base_url.host), served.client.base_url.port or 0)
        with socket.create_connection(where, timeout=20) as connection:
            connection.sendall(
                b"POST /api/v1/tune HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000000\r\n"
                b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
                b'content-disposition: form-data; name="model"; filename="a.onnx"\r\n\r\n'
                b"the first bytes"
            )
            with connection.makefile("rb") as reader:
                status = reader.readline().split()[1]
                headers = {}
                while line := reader.readline().strip():
                    name, _, value = line.partition(b": ")
                    headers[name] = value
                problem = json.loads(reader.read(int(headers[b"content-length"])))
        left = [*served.data_dir.glob("uploads/*"), *served.data_dir.glob("tmp/*")]
        after = served.client.get("/api/v1/jobs")

    assert (status, headers[b"content-type"]) == (b"408", b"application/problem+json")
    assert problem["type"].endswith("too-slow")
    assert left == []
    assert after.json()["items"] == []

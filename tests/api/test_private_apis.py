"""The private APIs of Starlette and uvicorn in use exist, and work as they are used (ADR 0028)."""

import gc
import inspect
import socket
import tempfile
from collections.abc import AsyncGenerator

import anyio
import pytest
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartParser
from starlette.responses import FileResponse, RangeNotSatisfiable
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.load import protocol
from api.settings import ApiSettings
from tests.api.conftest import serving
from tests.api.test_tune import open_below
from tests.waiting import wait_for

_PARTIAL_FORM = (
    b'--b\r\ncontent-disposition: form-data; name="model"; filename="a.onnx"\r\n\r\n' + b"x" * 100
)


def test_the_protocol_has_the_methods_that_are_overridden() -> None:
    """Uvicorn calls them with these parameters, and closes through the transport."""
    for name in ("connection_made", "connection_lost", "data_received", "on_body"):
        assert len(_parameters(HttpToolsProtocol, name)) == 2
        assert len(_parameters(protocol.BoundedProtocol, name)) == 2
    for name in (
        "on_message_begin",
        "on_headers_complete",
        "on_message_complete",
        "on_response_complete",
        "pause_writing",
        "resume_writing",
    ):
        assert _parameters(HttpToolsProtocol, name) == ["self"]
    assert _parameters(HttpToolsProtocol, "on_header") == ["self", "name", "value"]
    assert _parameters(HttpToolsProtocol, "_start_asgi_task") == ["self", "cycle", "app"]


def test_the_protocol_has_the_attributes_in_use() -> None:
    """It queues requests in ``pipeline``, each with the application of its time."""
    assigned = inspect.getsource(HttpToolsProtocol)
    for name in ("app", "pipeline", "client", "cycle", "flow", "headers"):
        assert f"self.{name}" in inspect.getsource(HttpToolsProtocol.__init__)
    assert 'self.url = b""' in assigned
    assert "app = self.app" in assigned
    cycle = inspect.getsource(RequestResponseCycle.__init__)
    for name in ("disconnected", "message_event", "response_complete"):
        assert f"self.{name}" in cycle
    assert "self.write_paused" in inspect.getsource(FlowControl)


def _parameters(kind: type, name: str) -> list[str]:
    return list(inspect.signature(getattr(kind, name)).parameters)


@pytest.mark.parametrize("head", [b"", b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"])
def test_a_head_that_does_not_arrive_ends_the_connection(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """A connection is closed without an answer, whether it is silent or stops in the middle."""
    monkeypatch.setattr(protocol, "_HEAD_TIMEOUT_SECS", 0.3)
    with serving(quick) as served:
        address = (str(served.client.base_url.host), served.client.base_url.port or 0)
        with socket.create_connection(address, timeout=20) as connection:
            connection.sendall(head)
            received = connection.recv(1000)
        assert received == b""
        assert served.client.get("/healthz").status_code == 200


def test_the_files_of_a_cut_off_form_are_known() -> None:
    """The parser lists the file of a part that never ended, which its form lacks."""

    async def parse() -> MultiPartParser:
        async def stream() -> AsyncGenerator[bytes, None]:
            yield _PARTIAL_FORM

        headers = Headers({"content-type": "multipart/form-data; boundary=b"})
        parser = MultiPartParser(headers, stream())
        form = await parser.parse()
        assert list(form.multi_items()) == []
        return parser

    parser = anyio.run(parse)

    (file,) = parser._files_to_close_on_error
    assert isinstance(file, tempfile.SpooledTemporaryFile)
    file.close()


def test_a_cut_off_form_leaves_no_open_file(quick: ApiSettings) -> None:
    """A complete request whose form ends in the middle of a file is rejected."""
    with serving(quick) as served:
        large = _PARTIAL_FORM + b"x" * 2_000_000
        kind = {"content-type": "multipart/form-data; boundary=b"}
        answer = served.client.post("/api/v1/tune", content=large, headers=kind)
        gc.collect()
        wait_for(lambda: not open_below(served.data_dir / "tmp"))

    assert answer.status_code == 400
    assert "cut off" in answer.json()["detail"]


def test_ranges_are_parsed_or_raise() -> None:
    """The parser of Starlette returns half-open ranges, and raises for those outside the file."""
    assert FileResponse._parse_range_header("bytes=0-1", 10) == [(0, 2)]
    assert FileResponse._parse_range_header("bytes=-3", 10) == [(7, 10)]
    with pytest.raises(RangeNotSatisfiable):
        FileResponse._parse_range_header("bytes=99-", 10)

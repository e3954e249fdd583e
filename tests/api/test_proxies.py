"""Behind a proxy: whose headers are believed, and what follows from them."""

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from api.load.turns import Start, Turns
from api.settings import ApiSettings
from records.service.owners import audit
from tests.api import make
from tests.api.conftest import Served, serving
from tests.api.test_access import token

if TYPE_CHECKING:
    import httpx

_CLIENT = "203.0.113.7"
_FORWARDED = {"x-forwarded-for": _CLIENT, "x-forwarded-proto": "https"}


def cancel(served: Served, **headers: str) -> str:
    """Cancel a job, and return the address that the audit log has of it."""
    with served.sessions.begin() as session:
        job_id = make.job(session, "waiting").id
    sent = {**token(served, "admin"), **headers}
    answer = served.client.post(f"/api/v1/jobs/{job_id}/cancel", headers=sent)
    assert answer.status_code == 200, answer.text
    with served.sessions() as session:
        return audit.actions(session)[0].address


def test_a_trusted_proxy_names_the_client(quick: ApiSettings) -> None:
    """The audit log has the nearest address that is not a proxy, whatever the client sent."""
    with serving(replace(quick, trusted_proxies=("127.0.0.1", "10.0.0.0/8"))) as served:
        address = cancel(served, **{"x-forwarded-for": f"1.2.3.4, {_CLIENT}, 10.9.9.9"})

    assert address == _CLIENT


@pytest.mark.parametrize("proxies", [(), ("10.0.0.7",)])
def test_headers_of_others_are_not_believed(quick: ApiSettings, proxies: tuple[str, ...]) -> None:
    """Without a trusted proxy, the address is that of the connection, also from loopback."""
    settings = replace(quick, require_tokens=True, trusted_proxies=proxies)
    with serving(settings) as served:
        assert cancel(served, **_FORWARDED) == "127.0.0.1"
        answer = served.client.get("/login", headers=_FORWARDED)

    assert "strict-transport-security" not in answer.headers


def test_behind_tls_the_cookie_is_secure(quick: ApiSettings) -> None:
    """The scheme of the client decides: HSTS and Secure with https, neither with http."""
    with serving(replace(quick, trusted_proxies=("127.0.0.1",))) as served:
        secret = token(served, "read")["authorization"].split()[1]
        answers: dict[str, httpx.Response] = {}
        for scheme in ("http", "https"):
            headers = {**_FORWARDED, "x-forwarded-proto": scheme}
            answers[scheme] = served.client.post("/login", data={"token": secret}, headers=headers)

    hsts = {scheme: "strict-transport-security" in a.headers for scheme, a in answers.items()}
    secure = {scheme: "Secure" in a.headers["set-cookie"] for scheme, a in answers.items()}
    assert hsts == secure == {"http": False, "https": True}


def test_clients_behind_a_proxy_have_rates_of_their_own(quick: ApiSettings) -> None:
    """A client that sends too many requests does not use up those of another."""
    with serving(replace(quick, trusted_proxies=("127.0.0.1",), rate=1.0)) as served:

        def status(address: str) -> int:
            headers = {"x-forwarded-for": address}
            return served.client.get("/login", headers=headers).status_code

        first = [status("203.0.113.7") for _ in range(8)]
        assert (first[0], first[-1]) == (200, 429)
        assert status("203.0.113.8") == 200


def test_clients_behind_a_proxy_have_turns_of_their_own(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is in a hurry because the proxy sends its request at once after that of another."""
    added: list[tuple[str, bool]] = []
    add = Turns.add

    def noted(self: Turns, client: str, start: Start, *, is_hasty: bool) -> None:
        added.append((client, is_hasty))
        add(self, client, start, is_hasty=is_hasty)

    with serving(replace(quick, trusted_proxies=("127.0.0.1", "10.0.0.0/8"))) as served:
        monkeypatch.setattr(Turns, "add", noted)
        for chain in ("1.2.3.4, 203.0.113.7, 10.9.9.9", "203.0.113.8"):
            served.client.get("/jobs", headers={"x-forwarded-for": chain})

    assert added == [("203.0.113.7", False), ("203.0.113.8", False)]


@pytest.mark.parametrize(
    "header",
    ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP"],
)
def test_a_service_without_tokens_refuses_proxies(quick: ApiSettings, header: str) -> None:
    """A proxy whose Host is loopback, as nginx sends by default, makes no client an admin."""
    with serving(quick) as served:
        answer = served.client.get("/api/v1/jobs", headers={header: "1.1 example"})
        assert served.client.get("/healthz", headers={header: "x"}).status_code == 200

    assert answer.status_code == 403
    assert answer.json()["type"].endswith("proxied")


def test_a_service_without_tokens_refuses_http_1_0(quick: ApiSettings) -> None:
    """By default nginx asks so, with Host of the service and without other headers."""
    with serving(quick) as served:
        address = (str(served.client.base_url.host), served.client.base_url.port or 0)
        with socket.create_connection(address, timeout=20) as bare:
            bare.sendall(b"GET /api/v1/jobs HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n")
            status = bare.recv(100).split()[1]

    assert status == b"403"

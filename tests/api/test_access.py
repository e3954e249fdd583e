"""Access control: tokens, scopes, hosts, origins and rate limits."""

import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from api import app_state
from api.app import create_app
from api.clients import auth
from api.clients.limits import Buckets, check_rate
from api.errors import Problem
from api.settings import ApiSettings, is_loopback
from records.models import now
from records.service.owners import tokens
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving


def token(served: Served, scope: str, lifetime: timedelta | None = None) -> dict[str, str]:
    """Create a token and return the header that carries it."""
    with served.sessions.begin() as session:
        _, secret = tokens.create_token(session, scope, [scope], lifetime)
    return {"authorization": f"Bearer {secret}"}


# Every other route needs a scope: GET read, anything else submit, and these admin.
_PUBLIC = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/static/{digest}/{name}"),
    ("GET", "/favicon.ico"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("POST", "/logout"),
    ("POST", "/theme"),
}
_ADMIN = {
    ("GET", "/api/v1/audit"),
    ("POST", "/api/v1/records"),
    ("GET", "/audit"),
    ("GET", "/tokens"),
    ("POST", "/tokens"),
    ("POST", "/tokens/{token_id}/renew"),
    ("POST", "/tokens/{token_id}/revoke"),
    ("POST", "/api/v1/jobs/{job_id}/release"),
    ("POST", "/jobs/{job_id}/release"),
}
_SUBMIT = {("GET", "/jobs/{job_id}/delete"), ("GET", "/api/v1/usage/webhook-secret")}


def routes(settings: ApiSettings) -> list[tuple[str, str]]:
    """Return the method and the path of every route of the application."""

    def leaves(nodes: Iterable[Any]) -> Iterator[Any]:
        for node in nodes:
            included = getattr(node, "original_router", None)
            yield from leaves(included.routes) if included is not None else [node]

    return sorted(
        (method, route.path)
        for route in leaves(create_app(settings).routes)
        for method in route.methods - {"HEAD" if "GET" in route.methods else ""}
    )


def needed_scope(method: str, path: str) -> str:
    """Return the scope that a route must require."""
    if (method, path) in _ADMIN:
        return "admin"
    if "/remote/" in path:
        return tokens.MEASURE
    is_read = method in ("GET", "HEAD") and (method, path) not in _SUBMIT
    return "read" if is_read else "submit"


def test_every_route_requires_its_scope(quick: ApiSettings) -> None:
    """Each scope allows its own routes and those of lower scopes, and every route needs a token."""
    protected = [route for route in routes(quick) if route not in _PUBLIC]
    with serving(replace(quick, require_tokens=True)) as served:
        senders = {scope: token(served, scope) for scope in (*tokens.SCOPES, tokens.MEASURE)}
        for method, template in protected:
            path = re.sub(r"{\w+}", "1", template)
            needed = needed_scope(method, template)
            for scope, header in senders.items():
                allowed = tokens.allows((scope,), needed)
                with served.client.stream(method, path, headers=header) as answer:
                    assert (answer.status_code not in (401, 403)) == allowed, (path, scope)
            answer = served.client.request(method, path)
            assert answer.status_code == 401, (method, path)

    assert len(protected) > 40
    assert set(protected) >= _ADMIN | _SUBMIT


def test_public_routes_answer_without_a_token(quick: ApiSettings) -> None:
    """Probes, the sign-in page and its assets are open, and exist."""
    assert set(routes(quick)) >= _PUBLIC
    with serving(replace(quick, require_tokens=True)) as served:
        for method, template in _PUBLIC - {("POST", "/login")}:
            path = re.sub(r"{\w+}", "1", template)
            assert served.client.request(method, path).status_code not in (401, 403), path


@pytest.mark.parametrize("authorization", [None, "Bearer tuner_x", "Basic eA=="])
def test_a_request_without_a_valid_token_is_challenged(
    settings: ApiSettings, authorization: str | None
) -> None:
    """The answer is a problem document that names the scheme, on each kind of database."""
    headers = {} if authorization is None else {"authorization": authorization}
    with serving(replace(settings, require_tokens=True)) as served:
        answer = served.client.get("/api/v1/jobs", headers=headers)

    assert answer.status_code == 401
    assert answer.json()["type"].endswith("unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/api/v1/tune", "/api/v1/records", "/jobs"])
def test_an_upload_of_a_stranger_is_not_received(quick: ApiSettings, path: str) -> None:
    """The answer comes before a byte of the body, for which a reader would wait a minute."""
    with serving(replace(quick, require_tokens=True)) as served:
        address = (str(served.client.base_url.host), served.client.base_url.port or 0)
        with socket.create_connection(address, timeout=20) as stranger:
            stranger.sendall(
                f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000000\r\n"
                "content-type: multipart/form-data; boundary=b\r\n\r\n".encode()
            )
            status = stranger.recv(100).split()[1]

    assert status == b"401"


def test_a_form_before_authentication_is_small(quick: ApiSettings) -> None:
    """Forms that are read before authentication cannot contain files."""
    with serving(replace(quick, require_tokens=True)) as served:
        for path in ("/login", "/jobs/1/priority", "/theme"):
            files = {"token": ("t", b"x" * 2**21)}
            assert served.client.post(path, files=files).status_code == 413, path


def test_a_text_field_has_a_size_limit(quick: ApiSettings) -> None:
    """Text fields are held in memory, so they have a limit of their own."""
    with serving(quick) as served:
        fields = {"zoo": (None, "mlp"), "name": (None, "x" * 100_000)}
        answer = served.client.post("/api/v1/tune", files=fields)

    assert answer.status_code == 400
    assert "form cannot be read" in answer.json()["detail"]


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-y: " + b"z" * 1000, b"GET /" + b"z" * 1000]
)
def test_a_head_without_end_is_cut_off(quick: ApiSettings, head: bytes) -> None:
    """Neither a header nor an address can fill the memory."""
    with serving(quick) as served:
        address = (served.client.base_url.host, served.client.base_url.port)
        with socket.create_connection(address, timeout=30) as stranger:
            stranger.sendall(head)
            with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012
                for _ in range(1000):
                    stranger.sendall(b"z" * 2**16)
        assert served.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("hosts", [(), ("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "evil.example")])
@pytest.mark.parametrize("require_tokens", [False, True])
def test_a_request_has_one_host(
    quick: ApiSettings, hosts: tuple[str, ...], require_tokens: bool
) -> None:
    """A proxy and the service could choose different ones of several."""
    lines = "".join(f"host: {host}\r\n" for host in hosts)
    with serving(replace(quick, require_tokens=require_tokens)) as served:
        address = (served.client.base_url.host, served.client.base_url.port)
        with socket.create_connection(address, timeout=30) as sender:
            sender.sendall(f"GET /api/v1/jobs HTTP/1.1\r\n{lines}\r\n".encode())
            status = sender.recv(100).split()[1]

    assert status == b"400"


@pytest.mark.parametrize("path", ["/jobs/1/", "/api/v1/jobs/", "/api/v1/jobs/1/", "/healthz/"])
def test_no_redirect_names_the_host_of_the_request(quick: ApiSettings, path: str) -> None:
    """A path with a slash too many is unknown."""
    with serving(replace(quick, require_tokens=True)) as served:
        answer = served.client.get(path, headers={"host": "evil.example"})

    assert answer.status_code == 404
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("kind", "refused"), [("Basic eDp5", True), ("Bearer", True), ("Bearer tuner_x", False)]
)
def test_a_password_that_browsers_send_is_not_a_token(
    quick: ApiSettings, kind: str, refused: bool
) -> None:
    """A page of another site can make a browser send a password, but not a bearer token."""
    headers = {"authorization": kind, "origin": "http://evil", "sec-fetch-site": "cross-site"}
    with serving(quick) as served:
        answer = served.client.post("/api/v1/jobs/1/cancel", headers=headers)

    assert answer.json()["type"].endswith("cross-site" if refused else "unauthenticated")


def test_reading_needs_no_writing(quick: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token stays valid if its use cannot be stored."""

    def full(*_: object) -> bool:
        raise OperationalError("UPDATE", {}, Exception("database or disk is full"))

    with serving(replace(quick, require_tokens=True)) as served:
        header = token(served, "read")
        monkeypatch.setattr(tokens, "touch", full)
        answer = served.client.get("/api/v1/jobs", headers=header)

    assert answer.status_code == 200


def test_a_revoked_token_ends_within_seconds(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up holds for REMEMBER_SECS and no longer."""
    at = 100.0
    monkeypatch.setattr(app_state, "Tokens", partial(auth.Tokens, clock=lambda: at))
    with serving(replace(quick, require_tokens=True)) as served:
        header = token(served, "read")
        statuses = [served.client.get("/api/v1/jobs", headers=header).status_code]
        with served.sessions.begin() as session:
            tokens.revoke_token(session, "read")
        for secs in (0.1, auth.REMEMBER_SECS - 0.1, auth.REMEMBER_SECS + 0.1):
            at = 100.0 + secs
            statuses.append(served.client.get("/api/v1/jobs", headers=header).status_code)

    assert statuses == [200, 200, 200, 401]
    assert auth.REMEMBER_SECS <= 5.0


def test_a_token_expires_while_it_is_remembered(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up that still holds does not keep an expired token valid."""
    # The clock stands still, so the look-up holds and only the remembered expiry can end it.
    monkeypatch.setattr(app_state, "Tokens", partial(auth.Tokens, clock=lambda: 100.0))
    with serving(replace(quick, require_tokens=True)) as served:
        header = token(served, "read", timedelta(hours=1))
        before = served.client.get("/api/v1/jobs", headers=header).status_code
        monkeypatch.setattr(auth, "now", lambda: now() + timedelta(hours=2))
        after = served.client.get("/api/v1/jobs", headers=header).status_code

    assert (before, after) == (200, 401)


def test_an_expired_token_is_rejected(quick: ApiSettings) -> None:
    """A look-up does not find it."""
    with serving(replace(quick, require_tokens=True)) as served:
        header = token(served, "read", timedelta(seconds=-1))
        assert served.client.get("/api/v1/jobs", headers=header).status_code == 401


def test_a_cookie_carries_a_token_of_the_same_site(quick: ApiSettings) -> None:
    """The cookie of the dashboard works from its own pages and is rejected from other sites."""
    with serving(replace(quick, require_tokens=True)) as served:
        secret = token(served, "submit")["authorization"].removeprefix("Bearer ")
        with served.sessions.begin() as session:
            job_id = make.job(session, owner="submit").id
        cookie = {"cookie": f"{auth.COOKIE}={secret}"}
        at = f"/api/v1/jobs/{job_id}/pause"
        foreign = [
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ]
        for headers in foreign:
            answer = served.client.post(at, headers={**cookie, **headers})
            assert answer.status_code == 403, headers
            assert answer.json()["type"].endswith("cross-site")
        origin = str(served.client.base_url).rstrip("/")
        ours = {"origin": origin, "sec-fetch-site": "same-origin"}
        assert served.client.post(at, headers={**cookie, **ours}).status_code == 200


def test_loopback_needs_no_token_but_its_own_name(quick: ApiSettings) -> None:
    """A Host other than this machine is rejected, which stops DNS rebinding."""
    with serving(quick) as served:
        for host in ("localhost", "127.0.0.1:1", "[::1]:8080", "tuner.localhost"):
            answer = served.client.get("/api/v1/jobs", headers={"host": host})
            assert answer.status_code == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1", "x" * 300):
            answer = served.client.get("/api/v1/jobs", headers={"host": host})
            assert answer.status_code == 421, host
        bad = {"authorization": "Bearer tuner_wrong"}
        assert served.client.get("/api/v1/jobs", headers=bad).status_code == 401


def test_no_other_site_is_allowed_to_read(quick: ApiSettings) -> None:
    """Answers have no CORS headers, and the security headers of browsers."""
    with serving(quick) as served:
        answer = served.client.get("/api/v1/jobs", headers={"origin": "http://evil.example"})
        wrong = served.client.get("/api/v1/nothing")

    assert not any(name.startswith("access-control") for name in answer.headers)
    for headers in (answer.headers, wrong.headers):
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["referrer-policy"] == "no-referrer"


def test_too_many_requests_get_a_retry_after(quick: ApiSettings) -> None:
    """Requests over the rate get 429 with Retry-After; probes are never limited."""
    with serving(replace(quick, rate=0.5)) as served:
        answers = [served.client.get("/api/v1/jobs") for _ in range(20)]
        probe = served.client.get("/healthz")

    refused = [answer for answer in answers if answer.status_code == 429]
    assert answers[0].is_success
    assert answers[-1] in refused
    assert refused[0].json()["type"].endswith("rate")
    assert int(refused[0].headers["retry-after"]) >= 1
    assert probe.status_code == 200


@pytest.mark.parametrize(
    ("path", "n_served"), [("/api/v1/jobs/1/cancel", 2), ("/api/v1/remote/lease", 10)]
)
def test_devices_send_more_requests_than_others_change(path: str, n_served: int) -> None:
    """A change counts as five requests, one of a device as one."""
    buckets = Buckets(5.0, clock=lambda: 0.0)
    for _ in range(n_served):
        check_rate(buckets, "ci", "POST", path)

    with pytest.raises(Problem, match="too many requests"):
        check_rate(buckets, "ci", "POST", path)


def test_a_bucket_refills_and_is_dropped() -> None:
    """A bucket holds two seconds of its rate, refills, and cannot fill the memory."""
    at = 0.0
    buckets = Buckets(10.0, clock=lambda: at)

    assert [buckets.take("a") for _ in range(20)] == [0.0] * 20
    assert buckets.take("a") == pytest.approx(0.1)
    at = 0.5
    assert [buckets.take("a") for _ in range(5)] == [0.0] * 5
    assert buckets.take("a") > 0
    for number in range(25_000):
        buckets.take(f"b{number}")
    assert len(buckets._levels) <= 10_000


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.com", False),
    ],
)
def test_only_loopback_goes_without_tokens(quick: ApiSettings, host: str, expected: bool) -> None:
    """Every other address requires tokens."""
    assert is_loopback(host) is expected
    assert replace(quick, host=host).needs_tokens is not expected


@on_each_database
def test_nul_in_an_address_is_a_bad_request(served: Served) -> None:
    """NUL is rejected in paths and in queries."""
    paths = ("jobs?q=%00", "records/best?workload=%00a", "jobs?cursor=%00", "jobs/%00")
    for path in paths:
        assert served.client.get(f"/api/v1/{path}").status_code == 400, path


@on_each_database
def test_numbers_outside_the_range_of_ids_are_rejected(served: Served) -> None:
    """Numbers that JSON or PostgreSQL cannot hold are rejected before a query."""
    for number in (2**53, 2**63, 2**70, 0, -1):
        for path in (f"jobs/{number}", f"jobs/{number}/tasks", f"records/best?target={number}"):
            answer = served.client.get(f"/api/v1/{path}")
            assert answer.status_code == 422, path
            assert isinstance(answer, httpx.Response)

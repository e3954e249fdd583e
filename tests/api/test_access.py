"""Who may do what: tokens, scopes, hosts, origins, and how often."""

import socket
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from api import auth
from api.limits import Buckets
from api.settings import ApiSettings, is_loopback
from records import tokens
from tests.api import make
from tests.api.conftest import Served, serving


def token(served: Served, scope: str, lifetime: timedelta | None = None) -> dict[str, str]:
    """Make a token and return the header that carries it."""
    with served.sessions.begin() as session:
        _, secret = tokens.create_token(session, scope, [scope], lifetime)
    return {"authorization": f"Bearer {secret}"}


_REQUESTS = [
    ("GET", "/api/v1/jobs", "read"),
    ("GET", "/api/v1/jobs/1/tasks", "read"),
    ("GET", "/api/v1/jobs/1/events", "read"),
    ("GET", "/api/v1/records/best", "read"),
    ("GET", "/metrics", "read"),
    ("POST", "/api/v1/tune", "submit"),
    ("POST", "/api/v1/jobs/1/cancel", "submit"),
    ("POST", "/api/v1/jobs/1/build", "submit"),
    ("POST", "/api/v1/records", "admin"),
    ("DELETE", "/api/v1/jobs/1", "submit"),
    ("GET", "/api/v1/audit", "admin"),
]


def test_scopes(settings: ApiSettings) -> None:
    """Each scope allows what it names and what those below it do, and nothing else."""
    with serving(replace(settings, require_tokens=True)) as served:
        senders: dict[str, dict[str, str]] = {
            scope: token(served, scope) for scope in tokens.SCOPES
        }
        for method, path, needed in _REQUESTS:
            for scope, header in senders.items():
                allowed = tokens.SCOPES.index(scope) >= tokens.SCOPES.index(needed)
                with served.client.stream(method, path, headers=header) as answer:
                    assert (answer.status_code not in (401, 403)) == allowed, (path, scope)
            for bad in ({}, {"authorization": "Bearer tuner_x"}, {"authorization": "Basic eA=="}):
                answer = served.client.request(method, path, headers=bad)
                assert answer.status_code == 401, path
                assert answer.json()["type"].endswith("unauthenticated")
                assert answer.headers["www-authenticate"].startswith("Bearer")
        assert served.client.get("/healthz").status_code == 200
        assert served.client.get("/readyz").status_code == 200


def test_an_upload_of_a_stranger_is_not_even_received(quick: ApiSettings) -> None:
    """The token is asked for before the body is read."""
    with serving(replace(quick, require_tokens=True)) as served:
        answer = served.client.post("/api/v1/tune", content=b"x" * 100)

    assert answer.status_code == 401


def test_a_form_of_a_stranger_is_small(quick: ApiSettings) -> None:
    """Forms are read before it is known who sends them, so they get no room for files."""
    with serving(replace(quick, require_tokens=True)) as served:
        for path in ("/login", "/jobs/1/priority", "/theme"):
            files = {"token": ("t", b"x" * 2**21)}
            assert served.client.post(path, files=files).status_code == 413, path


def test_a_field_of_an_upload_is_text(quick: ApiSettings) -> None:
    """What is no file stays in memory, so it has a limit of its own."""
    with serving(quick) as served:
        fields = {"zoo": (None, "mlp"), "name": (None, "x" * 100_000)}
        answer = served.client.post("/api/v1/tune", files=fields)

    assert answer.status_code == 400
    assert "form cannot be read" in answer.json()["detail"]


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-y: " + b"z" * 1000, b"GET /" + b"z" * 1000]
)
def test_a_head_without_end_is_cut_off(quick: ApiSettings, head: bytes) -> None:
    """Neither one header nor an address may fill the memory."""
    with serving(quick) as served:
        address = (served.client.base_url.host, served.client.base_url.port)
        with socket.create_connection(address, timeout=30) as stranger:
            stranger.sendall(head)
            with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012
                for _ in range(1000):
                    stranger.sendall(b"z" * 2**16)
        assert served.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("kind", "refused"), [("Basic eDp5", True), ("Bearer", True), ("Bearer tuner_x", False)]
)
def test_a_password_that_browsers_send_is_no_token(
    quick: ApiSettings, kind: str, refused: bool
) -> None:
    """A page of another site cannot borrow it; a token it cannot have, so that is looked up."""
    headers = {"authorization": kind, "origin": "http://evil", "sec-fetch-site": "cross-site"}
    with serving(quick) as served:
        answer = served.client.post("/api/v1/jobs/1/cancel", headers=headers)

    assert answer.json()["type"].endswith("cross-site" if refused else "unauthenticated")


def test_reading_needs_no_writing(quick: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that cannot be noted as used, because nothing can be written, is still good."""

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
    """It is remembered for so long and no longer."""
    monkeypatch.setattr(auth, "REMEMBER_SECS", 0.0)
    with serving(replace(quick, require_tokens=True)) as served:
        header = token(served, "read")
        before = served.client.get("/api/v1/jobs", headers=header)
        with served.sessions.begin() as session:
            tokens.revoke_token(session, "read")
        after = served.client.get("/api/v1/jobs", headers=header)

    assert (before.status_code, after.status_code) == (200, 401)


def test_a_token_that_is_over_is_over(quick: ApiSettings) -> None:
    """Even while it is remembered."""
    with serving(replace(quick, require_tokens=True)) as served:
        header = token(served, "read", timedelta(seconds=-1))
        assert served.client.get("/api/v1/jobs", headers=header).status_code == 401


def test_a_cookie_is_a_token(quick: ApiSettings) -> None:
    """The dashboard's; but not from another site."""
    with serving(replace(quick, require_tokens=True)) as served:
        secret = token(served, "submit")["authorization"].removeprefix("Bearer ")
        with served.sessions.begin() as session:
            job_id = make.job(session).id
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
    """A page whose name was bound to 127.0.0.1 is refused."""
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
    """No CORS headers; what browsers need to be strict is there."""
    with serving(quick) as served:
        answer = served.client.get("/api/v1/jobs", headers={"origin": "http://evil.example"})
        wrong = served.client.get("/api/v1/nothing")

    assert not any(name.startswith("access-control") for name in answer.headers)
    for headers in (answer.headers, wrong.headers):
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["referrer-policy"] == "no-referrer"


def test_too_many_requests_are_told_when_to_come_back(quick: ApiSettings) -> None:
    """And probes are never among them."""
    with serving(replace(quick, rate=5.0)) as served:
        answers = [served.client.get("/api/v1/jobs") for _ in range(20)]
        probe = served.client.get("/healthz")

    refused = [answer for answer in answers if answer.status_code == 429]
    assert 5 <= len(refused) <= 10
    assert refused[0].json()["type"].endswith("rate")
    assert int(refused[0].headers["retry-after"]) >= 1
    assert probe.status_code == 200


def test_a_bucket_refills_and_forgets() -> None:
    """Two seconds' worth at once, then its rate; strangers cannot fill the memory."""
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
    """Whatever else listens asks for them."""
    assert is_loopback(host) is expected
    assert replace(quick, host=host).needs_tokens is not expected


def test_nul_in_an_address_is_a_bad_request(served: Served) -> None:
    """Wherever it is."""
    paths = ("jobs?q=%00", "records/best?workload=%00a", "jobs?cursor=%00", "jobs/%00")
    for path in paths:
        assert served.client.get(f"/api/v1/{path}").status_code == 400, path


def test_numbers_that_no_row_has_are_refused(served: Served) -> None:
    """By PostgreSQL's measure, before it is asked."""
    for number in (2**31, 2**63, 2**70, 0, -1):
        for path in (f"jobs/{number}", f"jobs/{number}/tasks", f"records/best?target={number}"):
            answer = served.client.get(f"/api/v1/{path}")
            assert answer.status_code == 422, path
            assert isinstance(answer, httpx.Response)

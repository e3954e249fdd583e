"""Webhooks as a receiver gets them, from a real service to a real server."""

import base64
import contextlib
import hashlib
import hmac
import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from api.settings import ApiSettings, read_api_settings
from api.webhooks import deliveries
from api.webhooks.settings import WebhookSettings
from records import jobs
from records.models import JobState, now
from records.service import webhooks
from records.service.owners import tokens
from records.service.service_models import Webhook
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving
from tests.tuner.cli.commands.conftest import Shell
from tests.waiting import wait_for
from tuner.client import TunerClient
from tuner.errors import RequestError

KEY = b"k" * 32


@dataclass
class Receiver:
    """A server that keeps what it gets.

    Attributes:
        port: Its port on loopback.
        answers: Status of each answer, the last one repeated.
        received: Headers and body of each request.
    """

    port: int
    answers: list[int] = field(default_factory=lambda: [204])
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """An address with a query."""
        return f"http://127.0.0.1:{self.port}/hook?from=tuner"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/hook?from=tuner"
            body = self.rfile.read(int(self.headers["content-length"]))
            opened.received.append((dict(self.headers), body))
            code = opened.answers.pop(0) if len(opened.answers) > 1 else opened.answers[0]
            self.send_response(code)
            if code == 302:
                self.send_header("location", opened.url)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    opened = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield opened
    server.shutdown()
    server.server_close()
    thread.join()


def sending(settings: ApiSettings, url: str | None = None, *, private: bool = True) -> ApiSettings:
    """Return settings of a service that sends webhooks."""
    return replace(settings, webhooks=WebhookSettings(KEY, url, private))


def submit(served: Served, url: str = "", name: str = "night", **headers: str) -> int:
    """Submit a job with a webhook, and return its number."""
    form = {"zoo": "mlp", "trials": "8", "name": name, "webhook": url}
    answer = served.client.post(
        "/api/v1/tune", files={key: (None, text) for key, text in form.items()}, headers=headers
    )
    assert answer.status_code == 202, answer.text
    return int(answer.json()["job"]["id"])


def end(served: Served, job_id: int, state: JobState = "done", message: str | None = None) -> None:
    """End a job, as its worker does."""
    with served.sessions.begin() as session:
        jobs.set_state(session, job_id, state, message)


def hooks(served: Served, job_id: int) -> list[dict[str, object]]:
    """Return the webhooks of a job as REST serves them."""
    views: list[dict[str, object]] = served.client.get(f"/api/v1/jobs/{job_id}").json()["webhooks"]
    return views


def until(is_so: Callable[[], object]) -> None:
    """Wait for a delivery."""
    wait_for(is_so, 20)


def verify(secret: str, headers: dict[str, str], body: bytes) -> None:
    """Check a signature as a receiver does."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"


@on_each_database
def test_the_end_of_a_job_is_delivered(settings: ApiSettings, receiver: Receiver) -> None:
    """The request is signed with the secret that the service shows, and the job shows its state."""
    with serving(sending(settings)) as served:
        job_id = submit(served, receiver.url)
        (waiting,) = hooks(served, job_id)
        end(served, job_id, "failed", "no such operator")
        until(lambda: hooks(served, job_id)[0]["delivered"])
        secret = served.client.get("/api/v1/usage/webhook-secret").json()["secret"]
        page = served.client.get(f"/jobs/{job_id}").text

    assert (waiting["state"], waiting["attempts"]) == (None, 0)
    ((headers, body),) = receiver.received
    verify(secret, headers, body)
    content = json.loads(body)
    assert content["type"] == "job.failed"
    assert content["data"] == {
        "id": job_id, "name": "night", "state": "failed", "message": "no such operator",
        "path": f"/api/v1/jobs/{job_id}",
    }  # fmt: skip
    assert "delivered: HTTP 204" in page
    assert "from=tuner" not in page


def test_what_was_not_accepted_is_sent_again_after_a_restart(
    quick: ApiSettings, receiver: Receiver
) -> None:
    """Another process repeats the delivery under its id; a redirect is not followed."""
    receiver.answers = [302, 200]
    with serving(sending(quick)) as served:
        job_id = submit(served, receiver.url)
        end(served, job_id, "cancelled")
        until(lambda: hooks(served, job_id)[0]["status"])
        (failed,) = hooks(served, job_id)
        with served.sessions.begin() as session:
            row = session.get_one(Webhook, (job_id, False))
            row.due = row.attempted
            assert len(receiver.received) == 1
    with serving(sending(quick)) as served:
        until(lambda: hooks(served, job_id)[0]["delivered"])
        (accepted,) = hooks(served, job_id)

    assert (failed["status"], failed["delivered"], failed["attempts"]) == ("HTTP 302", False, 1)
    assert failed["due"] is not None
    assert (accepted["status"], accepted["attempts"], accepted["due"]) == ("HTTP 200", 2, None)
    (first, _), (second, _) = receiver.received
    assert first["webhook-id"] == second["webhook-id"]


def test_an_owner_cannot_sign_for_another(quick: ApiSettings, receiver: Receiver) -> None:
    """Each token has a secret of its own; that of the service's address is the operator's."""
    receiver.answers = [200]
    settings = sending(replace(quick, require_tokens=True), receiver.url)
    with serving(settings) as served:
        with served.sessions.begin() as session:
            bearers = [
                {"authorization": f"Bearer {tokens.create_token(session, name, ['submit'])[1]}"}
                for name in ("a", "b")
            ]
        secrets = [
            served.client.get("/api/v1/usage/webhook-secret", headers=bearer).json()["secret"]
            for bearer in bearers
        ]
        job_id = submit(served, receiver.url, **bearers[0])
        end(served, job_id)
        until(lambda: len(receiver.received) == 2)

    assert len({*secrets, f"whsec_{base64.b64encode(KEY).decode()}"}) == 3
    signatures = {headers["webhook-signature"] for headers, _ in receiver.received}
    assert len(signatures) == 2
    for headers, body in receiver.received:
        if any(_is_signed_by(secret, headers, body) for secret in secrets):
            verify(secrets[0], headers, body)
        else:
            verify(f"whsec_{base64.b64encode(KEY).decode()}", headers, body)


def _is_signed_by(secret: str, headers: dict[str, str], body: bytes) -> bool:
    try:
        verify(secret, headers, body)
    except AssertionError:
        return False
    return True


def test_a_private_address_gets_nothing(quick: ApiSettings, receiver: Receiver) -> None:
    """A name of this machine is refused when it is resolved; without connecting."""
    url = receiver.url.replace("127.0.0.1", "localhost")
    with serving(sending(quick, private=False)) as served:
        job_id = submit(served, url)
        end(served, job_id)
        until(lambda: hooks(served, job_id)[0]["status"])
        (hook,) = hooks(served, job_id)

    assert hook["status"] == "refused: the address is private"
    assert not receiver.received


def test_a_certificate_of_another_is_refused(quick: ApiSettings, tmp_path: Path) -> None:
    """An address of HTTPS gets nothing if another machine answers in its place."""
    with tls_server(tmp_path) as port, serving(sending(quick)) as served:
        job_id = submit(served, f"https://127.0.0.1:{port}/hook")
        end(served, job_id)
        until(lambda: hooks(served, job_id)[0]["status"])
        (hook,) = hooks(served, job_id)

    assert str(hook["status"]).startswith("certificate refused")


@contextmanager
def tls_server(folder: Path) -> Iterator[int]:
    """Serve TLS with a certificate that no authority signed; yield the port."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now() - timedelta(days=1))
        .not_valid_after(now() + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = folder / "server.pem"
    private = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(certificate.public_bytes(Encoding.PEM) + key.private_bytes(*private))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_service_without_a_secret_sends_none(shared: Served) -> None:
    """It refuses a job with a webhook, and the page offers none."""
    form = {"zoo": (None, "mlp"), "webhook": (None, "https://ci.example")}

    answer = shared.client.post("/api/v1/tune", files=form)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "webhook"
    assert shared.client.get("/api/v1/usage/webhook-secret").status_code == 404
    assert 'name="webhook"' not in shared.client.get("/").text


@pytest.mark.parametrize(
    "variables",
    [
        {"TUNER_WEBHOOK_SECRET": "short"},
        {"TUNER_WEBHOOK_SECRET": "whsec_c2hvcnQ="},
        {"TUNER_WEBHOOK_URL": "https://ci.example"},
        {"TUNER_WEBHOOK_SECRET": f"whsec_{'A' * 44}", "TUNER_WEBHOOK_URL": "http://10.0.0.1"},
    ],
)
def test_wrong_settings_stop_the_start(variables: dict[str, str]) -> None:
    """The error names the variable."""
    with pytest.raises(RequestError, match="TUNER_WEBHOOK_"):
        read_api_settings({}, variables)


def test_only_the_host_of_an_address_is_shown(quick: ApiSettings) -> None:
    """Members of a project read the job, and its path may be a secret of the owner."""
    with serving(sending(quick)) as served:
        with served.sessions.begin() as session:
            job = make.job(session)
            webhooks.register(session, job, "https://ci.example/secret")
            job_id = job.id
        view = served.client.get(f"/api/v1/jobs/{job_id}").text

    assert "ci.example" in view
    assert "secret" not in view


def test_a_command_names_a_webhook(quick: ApiSettings, receiver: Receiver, tmp_path: Path) -> None:
    """The client and the command line send the address; both have the secret."""
    with serving(sending(quick)) as served:
        url = str(served.client.base_url)
        server, options = Shell(tmp_path), ("tune", "zoo:mlp", "--trials", "8")
        with TunerClient(url) as client:
            job_id = client.tune("zoo:mlp", trials=8, webhook=receiver.url).job.id
            secret = client.webhook_secret()
        printed = server("--server", url, "jobs", "webhook-secret").out.strip()
        end(served, job_id)
        until(lambda: hooks(served, job_id)[0]["delivered"])
        # The job is done, so that the command returns at once and is reported at once.
        again = server("--server", url, *options, "--webhook", receiver.url)
        until(lambda: len(receiver.received) == 2)

    assert secret == printed == f"whsec_{base64.b64encode(KEY).decode()}"
    assert again.status == 0, again.err


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", "no answer in time"),
        (b"SSH-2.0-server\r\n", "no connection, or no answer of HTTP: ValueError"),
        (b"H" * 5000, "no connection, or no answer of HTTP: ValueError"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 5000, "HTTP 200"),
    ],
)
def test_a_receiver_cannot_hold_up_the_service(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch, answer: bytes, status: str
) -> None:
    """An attempt is over after some seconds, and reads one line."""
    monkeypatch.setattr(deliveries, "_TIMEOUT_SECS", 0.5)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.sendall(answer)
                while self.request.recv(1000):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with serving(sending(quick)) as served:
            job_id = submit(served, f"http://127.0.0.1:{server.server_address[1]}/")
            end(served, job_id)
            until(lambda: hooks(served, job_id)[0]["status"])
            (hook,) = hooks(served, job_id)
        server.shutdown()
        thread.join()

    assert hook["status"] == status

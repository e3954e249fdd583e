"""The example for nginx, on a real nginx in front of a real service."""

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from api.settings import ApiSettings
from records.service.owners import audit
from records.tuning import events
from tests.api import make
from tests.api.conftest import Served, serving
from tests.api.test_access import token
from tests.docs.documents import ROOT
from tests.services import free_port

# The client has another address than the proxy.
_CLIENT = "127.0.0.2"
_NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""
_MAIN = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""
_BARE = "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{api}; }} }}"

pytestmark = [
    pytest.mark.slow("needs nginx and openssl, which CI does not install"),
    pytest.mark.skipif(not (_NGINX and shutil.which("openssl")), reason="no nginx or openssl"),
]


@contextmanager
def nginx(folder: Path, server: str, port: int) -> Iterator[None]:
    """Run nginx with a configuration of its http context, until it listens and to the end."""
    user = "user root;" if os.getuid() == 0 else ""
    path = folder / "nginx.conf"
    path.write_text(_MAIN.format(folder=folder, server=server, user=user))
    command = [_NGINX, "-p", str(folder), "-c", str(path), "-e", "stderr"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            assert process.poll() is None, process.stderr and process.stderr.read()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.fixture
def proxied(quick: ApiSettings, tmp_path: Path) -> Iterator[tuple[Served, httpx.Client]]:
    """A service behind the example's nginx, and a client of the latter over TLS."""
    port = free_port()
    certificate, key = tmp_path / "tuner.pem", tmp_path / "tuner.key"
    names = ["-subj", "/CN=tuner.example.com", "-addext", "subjectAltName=DNS:tuner.example.com"]
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-out", str(certificate)]
    command = ["openssl", "req", *made, "-keyout", str(key), *names]
    subprocess.run(command, check=True, capture_output=True)
    with serving(replace(quick, trusted_proxies=("127.0.0.1",))) as served:
        server = (ROOT / "deploy" / "proxies" / "nginx.conf").read_text()
        for example, here in (
            ("127.0.0.1:8080", f"127.0.0.1:{served.client.base_url.port}"),
            ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
            ("/etc/ssl/tuner.example.com.pem", str(certificate)),
            ("/etc/ssl/tuner.example.com.key", str(key)),
        ):
            assert example in server
            server = server.replace(example, here)
        context = ssl.create_default_context(cafile=str(certificate))
        transport = httpx.HTTPTransport(verify=context, local_address=_CLIENT)
        host = f"tuner.example.com:{port}"
        with (
            nginx(tmp_path, server, port),
            httpx.Client(
                base_url=f"https://127.0.0.1:{port}",
                headers={"host": host, "origin": f"https://{host}"},
                transport=transport,
                timeout=20,
            ) as client,
        ):
            yield served, client


def test_a_browser_signs_in_over_tls(proxied: tuple[Served, httpx.Client]) -> None:
    """The cookie is secure, the page allows HTTPS alone, and the audit log has the client."""
    served, client = proxied
    secret = token(served, "admin")["authorization"].split()[1]
    name = {"sni_hostname": "tuner.example.com"}
    forged = {"x-forwarded-for": "1.2.3.4", "x-forwarded-proto": "http"}
    answer = client.post("/login", data={"token": secret}, headers=forged, extensions=name)

    assert answer.status_code == 303, answer.text
    assert "Secure" in answer.headers["set-cookie"]
    assert answer.headers["strict-transport-security"].startswith("max-age=")
    with served.sessions() as session:
        row = audit.actions(session)[0]
    assert (row.action, row.address) == ("sign-in", _CLIENT)


def test_events_and_large_bodies_pass(proxied: tuple[Served, httpx.Client]) -> None:
    """An event arrives while its stream is open; an upload is larger than nginx's own limit."""
    served, client = proxied
    header, name = token(served, "admin"), {"sni_hostname": "tuner.example.com"}
    with served.sessions.begin() as session:
        job_id = make.job(session).id
        events.add_event(session, job_id, "priority", {"priority": 3})
    path = f"/api/v1/jobs/{job_id}/events"
    started = time.monotonic()
    with client.stream("GET", path, headers=header, extensions=name) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("id:"))
        assert time.monotonic() - started < 10.0
    files = {"model": ("model.onnx", b"\x08\x07" + b"x" * 2**22)}
    upload = client.post(
        "/api/v1/tune", files=files, data={"trials": "1"}, headers=header, extensions=name
    )
    metrics = client.get("/metrics", headers=header, extensions=name)

    assert upload.status_code in (202, 415), upload.text
    assert metrics.status_code == 404


def test_a_bare_nginx_makes_no_client_an_administrator(quick: ApiSettings, tmp_path: Path) -> None:
    """With nginx's defaults, Host is loopback and no header names the proxy."""
    port = free_port()
    with serving(quick) as served:
        server = _BARE.format(port=port, api=served.client.base_url.port)
        with nginx(tmp_path, server, port):
            answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/jobs", trust_env=False)

    assert answer.status_code == 403
    assert answer.json()["type"].endswith("proxied")

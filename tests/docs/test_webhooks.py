"""The receiver of the page on webhooks works as written: it verifies, and sends a mail."""

import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx

from api.settings import ApiSettings
from api.webhooks.settings import WebhookSettings, secret_text
from records import jobs
from tests.api.conftest import quick, serving
from tests.api.webhooks.test_deliveries import KEY, submit
from tests.docs.documents import ROOT
from tests.services import free_port
from tests.waiting import wait_for

__all__ = ["quick"]
_PAGE = (ROOT / "docs" / "webhooks.md").read_text()


@contextmanager
def mail_server() -> Iterator[tuple[int, list[str]]]:
    """Serve SMTP; yield the port and the mails that arrive."""
    mails: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                if line.upper().startswith(b"DATA"):
                    self.wfile.write(b"354 go on\r\n")
                    lines = iter(self.rfile.readline, b".\r\n")
                    mails.append(b"".join(lines).decode())
                is_end = line.upper().startswith(b"QUIT")
                self.wfile.write(b"221 bye\r\n" if is_end else b"250 done\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], mails
        server.shutdown()


def listens(port: int) -> bool:
    """Return whether a server listens on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_receiver_of_the_page_sends_a_mail(quick: ApiSettings) -> None:
    """It refuses what another has signed."""
    (program,) = re.findall(r"^```python\n(.*?)^```", _PAGE, re.DOTALL | re.MULTILINE)
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    settings = replace(quick, webhooks=WebhookSettings(KEY, allows_private=True))
    with mail_server() as (mail_port, mails), serving(settings) as served:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "WEBHOOK_SECRET": secret_text(KEY),
                "PORT": str(port),
                "MAIL_HOST": "127.0.0.1",
                "MAIL_PORT": str(mail_port),
                "MAIL_FROM": "tuner@example.com",
                "MAIL_TO": "me@example.com",
            },
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: listens(port))
            job_id = submit(served, url)
            with served.sessions.begin() as session:
                jobs.set_state(session, job_id, "failed", "no such operator")
            path = f"/api/v1/jobs/{job_id}"
            wait_for(lambda: served.client.get(path).json()["webhooks"][0]["delivered"])
            forged = {"webhook-id": "1", "webhook-timestamp": "1", "webhook-signature": "v1,eA=="}
            refused = httpx.post(url, content=b"{}", headers=forged, trust_env=False)
        finally:
            process.kill()
            process.wait()

    assert refused.status_code == 401
    (mail,) = mails
    assert f"Subject: job {job_id}, night, is failed" in mail
    assert "no such operator" in mail

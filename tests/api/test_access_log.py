"""The access log has a line for each request, and the audit log what tokens were used for."""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from api.settings import ApiSettings
from records.service.owners import audit
from tests.api import make
from tests.api.conftest import serving
from tests.api.test_access import token


class Lines(logging.Handler):
    """Keeps the records of the access log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)

    def of(self, path: str) -> dict[str, Any]:
        """Return the fields of the last line about a path."""
        names = ("levelname", "method", "path", "status", "secs", "subject", "address", "problem")
        record = [r for r in self.records if r.__dict__["path"] == path][-1]
        return {name: getattr(record, name, None) for name in names}


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Lines of the access log, from DEBUG on."""
    log, handler = logging.getLogger("api.access"), Lines()
    level, log.level = log.level, logging.DEBUG
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


def test_a_request_is_one_line_without_its_query(quick: ApiSettings, lines: Lines) -> None:
    """It has method, path, status, duration, subject and address, and no secret."""
    with serving(replace(quick, require_tokens=True)) as served:
        header = token(served, "read")
        served.client.get("/api/v1/jobs?q=private", headers=header)
        served.client.get("/healthz")
    line = lines.of("/api/v1/jobs")

    assert 0.0 < line.pop("secs") < 20.0
    assert line == {
        "levelname": "INFO",
        "method": "GET",
        "path": "/api/v1/jobs",
        "status": 200,
        "subject": "read",
        "address": "127.0.0.1",
        "problem": None,
    }
    assert lines.of("/healthz")["levelname"] == "DEBUG"
    written = str([vars(record) for record in lines.records])
    assert "private" not in written
    assert header["authorization"].split()[1] not in written


def test_refusals_are_warnings_with_their_subject(quick: ApiSettings, lines: Lines) -> None:
    """401, 403 and 429 say who was refused, as far as that is known, and from where."""
    settings = replace(quick, require_tokens=True)
    with serving(settings) as served:
        header = token(served, "read")
        served.client.get("/api/v1/workers")
        served.client.get("/", headers={"accept": "text/html"})
        served.client.get("/api/v1/audit", headers=header)
        served.client.post("/login", data={"token": "wrong"})
        expired = token(served, "submit", timedelta(microseconds=1))
        served.client.get("/api/v1/devices", headers=expired)
    with serving(replace(settings, rate=1.0)) as served:
        for _ in range(8):
            served.client.get("/api/v1/targets", headers=header)

    refused = {
        path: (lines.of(path)["levelname"], lines.of(path)["status"], lines.of(path)["subject"])
        for path in ("/api/v1/workers", "/", "/api/v1/audit", "/login", "/api/v1/devices")
    }
    assert refused == {
        "/api/v1/workers": ("WARNING", 401, None),
        "/": ("WARNING", 303, None),
        "/api/v1/audit": ("WARNING", 403, "read"),
        "/login": ("WARNING", 401, None),
        "/api/v1/devices": ("WARNING", 401, None),
    }
    limited = lines.of("/api/v1/targets")
    assert (limited["status"], limited["subject"], limited["problem"]) == (429, "read", "rate")
    assert {record.__dict__["address"] for record in lines.records} == {"127.0.0.1"}


def test_sign_ins_and_downloads_are_in_the_audit_log(quick: ApiSettings) -> None:
    """Each has its subject, address and job; a download that is not sent has no row."""
    with serving(replace(quick, require_tokens=True)) as served:
        header = token(served, "admin")
        secret = header["authorization"].split()[1]
        served.client.post("/login", data={"token": secret})
        served.client.cookies.clear()
        content = b"library"
        with served.sessions.begin() as session:
            job_id = make.tuned(session)
            digest = hashlib.sha256(content).hexdigest()
            make.built(session, job_id, served.data_dir / "archives", content, digest)
        path = f"/api/v1/jobs/{job_id}/library"
        first = served.client.get(path, headers=header)
        served.client.head(path, headers=header)
        served.client.get(path, headers={**header, "if-none-match": first.headers["etag"]})
        with served.sessions() as session:
            rows = [
                (row.action, row.subject, row.address, row.job_id)
                for row in audit.actions(session)
                if row.action in ("sign-in", "download")
            ]

    assert rows == [
        ("download", "admin", "127.0.0.1", job_id),
        ("sign-in", "admin", "127.0.0.1", None),
    ]

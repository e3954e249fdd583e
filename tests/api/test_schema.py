"""A process whose database was upgraded while it runs answers no request."""

import time

import pytest
from sqlalchemy import text

from api.load import readiness
from api.settings import ApiSettings
from records import migrations
from tests.api.conftest import Served, serving


def set_revision(served: Served, revision: str) -> None:
    """Store a schema revision, as an upgrade does."""
    with served.sessions.begin() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :new"), {"new": revision})


def status_of(served: Served, path: str, expected: int) -> int:
    """Return the status of a path once it is the expected one, or after some seconds."""
    deadline = time.monotonic() + 5.0
    while True:
        status = served.client.get(path).status_code
        if status == expected or time.monotonic() > deadline:
            return status
        time.sleep(0.02)


def test_a_process_notices_another_schema_by_itself(
    settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests, pages and /readyz get 503 and a time to wait, /healthz does not."""
    monkeypatch.setattr(readiness, "_WATCH_INTERVAL_SECS", 0.05)
    with serving(settings) as served:
        set_revision(served, "9999")
        refused = status_of(served, "/api/v1/jobs", 503)
        problem = served.client.get("/readyz").json()
        waits = [
            served.client.get(path, headers={"accept": "text/html"}).headers["retry-after"]
            for path in ("/api/v1/jobs", "/readyz", "/workers")
        ]
        alive = served.client.get("/healthz").status_code
        set_revision(served, migrations.newest())
        restored = status_of(served, "/api/v1/jobs", 200)

    assert (refused, alive, restored) == (503, 200, 200)
    assert problem["type"].endswith(":outdated")
    assert waits == ["30"] * 3
    assert "sqlite" not in problem["detail"]

"""Every error is a problem document with advice, and without internals."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi.exceptions import RequestValidationError
from sqlalchemy import exc

from api import metrics
from api.errors import KINDS, URN, as_problem
from api.settings import ApiSettings
from records.errors import BadLog, DatabaseUnusable, KeyReused, NoSuchRow, SchemaTooNew
from tests.api import make
from tests.api.conftest import Served, serving
from tests.cli import ROOT
from tuner.errors import ModelError, RequestError, TargetError
from tuner.queries import jobs as job_queries


def test_an_error_of_a_field_names_it_separately() -> None:
    """Programs read the field, people the detail."""
    problem = as_problem(TargetError("must be printable, got 'a\x1b'", field="target"))

    assert problem.slug == "bad-target"
    assert problem.detail == "target: must be printable, got 'a\ufffd'"
    assert problem.more["errors"] == [
        {"field": "target", "message": "must be printable, got 'a\ufffd'"}
    ]


def test_wrong_fields_have_one_phrase_each() -> None:
    """It tells the limit, and not the value."""
    above = {"type": "less_than_equal", "loc": ("query", "wait"), "input": "1e9", "ctx": {"le": 60}}
    errors = [
        above,
        above,
        {"type": "missing", "loc": ("body", "model"), "input": None},
        {"type": "too_long", "loc": ("name",), "input": "secret", "ctx": {"max_length": 5}},
        {"type": "bool_parsing", "loc": ("a",), "input": "secret", "msg": "Input should be a bool"},
    ]

    problem = as_problem(RequestValidationError(errors))

    assert problem.detail == (
        "query.wait: must be at most 60; body.model: is missing; "
        "name: must have at most 5 characters; a: must be a bool"
    )


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (RequestError("must be 1", field="trials_per_round"), "invalid"),
        (ModelError("damaged"), "bad-model"),
        (TargetError("unknown"), "bad-target"),
        (NoSuchRow("no job 1"), "not-found"),
        (KeyReused("k"), "key-reused"),
        (BadLog(3, "torn"), "bad-log"),
        (DatabaseUnusable("gone"), "unavailable"),
        (exc.OperationalError("SELECT secret", {}, Exception("server closed")), "unavailable"),
        (exc.TimeoutError(), "unavailable"),
        (SchemaTooNew("postgresql://secret has schema revision 9999"), "outdated"),
        (exc.DataError("SELECT secret", {}, Exception("out of range")), "invalid"),
        (OSError(errno.ENOSPC, "full"), "disk-full"),
        (OSError(errno.EACCES, "denied"), "unexpected"),
        (ZeroDivisionError("at /home/secret.py"), "unexpected"),
    ],
)
def test_each_exception_has_its_kind(error: Exception, slug: str) -> None:
    """No SQL, path or traceback appears in a detail."""
    problem = as_problem(error)

    assert problem.slug == slug
    assert problem.status_code == KINDS[slug].status
    assert "secret" not in problem.detail
    assert "--" not in problem.detail
    assert ("retry-after" in (problem.headers or {})) == (
        slug in ("unavailable", "outdated", "disk-full")
    )


def test_every_kind_is_documented() -> None:
    """docs/rest.md lists each kind with its status."""
    text = (ROOT / "docs" / "rest.md").read_text()
    for slug, kind in KINDS.items():
        row = next(
            line
            for line in text.splitlines()
            if f"`{slug}`" in line.partition("| ")[2].partition(" |")[0]
        )
        assert f"| {kind.status} |" in row, slug


def test_an_internal_error_has_a_reference(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reference of the answer is in the log, with the traceback."""

    def broken(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError("a secret path")

    monkeypatch.setattr(job_queries, "list_jobs", broken)
    with serving(quick) as served:
        answer = served.client.get("/api/v1/jobs")
        after = served.client.get("/healthz")

    problem = answer.json()
    assert (answer.status_code, after.status_code) == (500, 200)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "secret" not in answer.text
    assert problem["detail"] == f"reference {problem['reference']}"
    assert "Traceback" not in answer.text
    assert "ZeroDivisionError" not in answer.text
    (logged,) = [r for r in caplog.records if problem["reference"] in r.getMessage()]
    assert logged.exc_info is not None
    assert logged.exc_info[0] is ZeroDivisionError


def test_a_failed_database_is_unavailable(quick: ApiSettings) -> None:
    """Requests get 503 with Retry-After, and the liveness probe still succeeds."""
    path = Path(quick.tuner.database.removeprefix("sqlite:///"))
    with serving(quick) as served:
        with served.sessions.begin() as session:
            session.connection().exec_driver_sql("DROP TABLE event")
            session.connection().exec_driver_sql("ALTER TABLE job RENAME TO gone")
        answer = served.client.get("/api/v1/jobs")
        alive = served.client.get("/healthz")
        assert path.is_file()

    assert (answer.status_code, alive.status_code) == (503, 200)
    assert answer.json()["type"] == f"{URN}unavailable"
    assert int(answer.headers["retry-after"]) > 0
    assert "SELECT" not in answer.text


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda client: client.get("/api/v1/nothing"), 404),
        (lambda client: client.put("/api/v1/jobs"), 405),
        (lambda client: client.get("/api/v1/jobs/x"), 422),
        (lambda client: client.post("/api/v1/jobs/1/budget", content=b"{"), 422),
        (lambda client: client.post("/api/v1/jobs/1/budget", json={"trials": "x"}), 422),
        (
            lambda client: client.post(
                "/api/v1/jobs/1/budget",
                content=b'{"seconds": NaN}',
                headers={"content-type": "application/json"},
            ),
            422,
        ),
        (
            lambda client: client.post(
                "/api/v1/jobs/1/budget",
                content=b"[" * 100_000,
                headers={"content-type": "application/json"},
            ),
            400,
        ),
    ],
)
def test_every_rejection_is_a_problem_document(
    shared: Served, ask: Callable[[httpx.Client], httpx.Response], status: int
) -> None:
    """Rejections by the framework are problem documents as well."""
    answer = ask(shared.client)

    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(answer.json()) >= {"type", "title", "status", "detail", "advice"}


def test_metrics_include_the_database(served: Served) -> None:
    """Trials by outcome, the queue and requests by route are included."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    served.client.get(f"/api/v1/jobs/{job_id}")
    text = served.client.get("/metrics").text

    for line in (
        'subgraph_tuner_trials_total{outcome="ok"} 3.0',
        'subgraph_tuner_trials_total{outcome="run_error"} 1.0',
        'subgraph_tuner_queue{kind="jobs"} 1.0',
        "subgraph_tuner_database_up 1.0",
        'method="GET",route="/api/v1/jobs/{job_id}",status="200"',
    ):
        assert line in text, line


def test_metrics_cache_the_database(served: Served) -> None:
    """Two requests in a row read the database once."""
    before = served.client.get("/metrics").text
    with served.sessions.begin() as session:
        make.tuned(session)
    again = served.client.get("/metrics").text

    line = 'subgraph_tuner_jobs{state="queued"} 0.0'
    assert line in before
    assert line in again
    assert metrics._CACHE_SECS > 1


def test_the_api_imports_no_compiler() -> None:
    """Libraries that read models or compile are imported by workers only."""
    program = (
        "import sys, api.__main__; from api.app import create_app\n"
        "bad = {'tvm', 'onnx', 'xgboost', 'torch', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr

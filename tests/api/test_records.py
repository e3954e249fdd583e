"""Measure records over HTTP: look-ups, lists, exports and imports."""

import gzip
import json
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from api import app_state
from api.routes import records as record_routes
from api.settings import ApiSettings
from records import measure_records
from records.logs import measure_log
from records.service import kernel_codes
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving
from tests.records import make as rows

AT = "/api/v1/records"
# A statement that takes SQLite minutes.
COUNT = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000)
SELECT count(*) FROM n
"""


def test_the_best_records_of_a_workload(served: Served) -> None:
    """A look-up returns one record for each target, or that of one target."""
    with served.sessions.begin() as session:
        for n_cores, secs in ((2, 0.5), (4, 0.25)):
            task = rows.task(session, "w0", n_cores)
            measure_records.add_record(session, rows.timed(task, f"t{n_cores}", secs))
    items = served.client.get(f"{AT}/best", params={"workload": "w0"}).json()["items"]
    target = items[1]["target_id"]
    one = served.client.get(f"{AT}/best", params={"workload": "w0", "target": target}).json()
    none = served.client.get(f"{AT}/best", params={"workload": "other"}).json()

    assert [best["latency_secs"] for best in items] == [0.5, 0.25]
    assert one["items"] == [items[1]]
    assert none == {"items": [], "next": None}


@on_each_database
def test_records_are_searched_by_the_name_of_their_workload(served: Served) -> None:
    """A part of it is enough, in any case; best records and all records know it."""
    with served.sessions.begin() as session:
        for name in ("w0", "w1"):
            task = rows.task(session, name)
            measure_records.add_record(session, rows.timed(task, "t", 0.5))

    for path in ("best", "list"):
        (item,) = served.client.get(f"{AT}/{path}", params={"name": "W1"}).json()["items"]
        assert item["name"].endswith("w1")


def test_a_record_has_its_trace_and_its_job(served: Served) -> None:
    """An imported record has no job, and an unknown number is not found."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
        imported = measure_records.add_record(
            session, rows.timed(rows.task(session, "w9"), "t", 1.0)
        )
        assert imported is not None
        number = imported.id
    best = served.client.get(f"{AT}/best", params={"job": job_id}).json()["items"][0]
    record = served.client.get(f"{AT}/{best['record']}").json()
    other = served.client.get(f"{AT}/{number}").json()

    assert {name: record[name] for name in best.keys() & record.keys()} == {
        name: best[name] for name in best.keys() & record.keys()
    }
    assert (record["job"], record["is_best"], record["is_imported"]) == (job_id, True, False)
    assert record["trace"]
    assert (other["job"], other["is_imported"]) == (None, True)
    assert served.client.get(f"{AT}/999").status_code == 404


@on_each_database
def test_best_records_come_in_pages(served: Served) -> None:
    """Best records of all tasks, or of a job, are sorted by task."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
        for number in range(5):
            measure_records.add_record(
                session, rows.timed(rows.task(session, f"w{number}"), "t", 1.0)
            )
    first = served.client.get(f"{AT}/best", params={"limit": 4}).json()
    rest = served.client.get(f"{AT}/best", params={"limit": 4, "cursor": first["next"]}).json()
    of_job = served.client.get(f"{AT}/best", params={"job": job_id}).json()

    assert len(first["items"] + rest["items"]) == 6
    assert rest["next"] is None
    assert [best["workload"] for best in of_job["items"]] == ["s0-w0"]


@on_each_database
def test_records_come_in_pages(served: Served) -> None:
    """Records come newest first, failures alone on request, and infinity is null."""
    with served.sessions.begin() as session:
        task = rows.task(session)
        for number in range(5):
            measure_records.add_record(session, rows.timed(task, f"t{number}", 1.0))
        worst = rows.failed(task, "f", "wrong_result", max_error=float("inf"))
        measure_records.add_record(session, worst)
    first = served.client.get(f"{AT}/list", params={"limit": 4}).json()
    rest = served.client.get(f"{AT}/list", params={"limit": 4, "cursor": first["next"]}).json()
    failed = served.client.get(f"{AT}/list", params={"failed": True}).json()

    assert [r["record"] for r in first["items"] + rest["items"]] == [6, 5, 4, 3, 2, 1]
    assert [record["error_kind"] for record in failed["items"]] == ["wrong_result"]
    assert failed["items"][0]["max_error"] is None


@on_each_database
def test_an_export_can_be_imported(served: Served, quick: ApiSettings) -> None:
    """Every record is imported once, and a second import adds none."""
    with served.sessions.begin() as session:
        make.tuned(session)
    exported = served.client.get(AT)
    assert exported.headers["content-type"].startswith("application/jsonl")
    other = ApiSettings(
        quick.tuner.__class__(
            f"sqlite:///{quick.data_dir}/other.db", quick.data_dir / "other", "tests.engines.toy", 1
        )
    )
    with serving(other) as second:
        first = second.client.post(AT, content=exported.content).json()
        again = second.client.post(AT, content=exported.content).json()
        torn = second.client.post(AT, content=exported.content[:-5]).json()

    assert (first["added"], first["known"]) == (4, 0)
    assert (again["added"], again["known"]) == (0, 4)
    assert torn["torn"] == 1


@on_each_database
def test_exports_may_follow_each_other_at_once(served: Served) -> None:
    """The slot of the export before is waited for."""
    with served.sessions.begin() as session:
        make.tuned(session)

    assert {served.client.get(AT).status_code for _ in range(20)} == {200}


def test_a_damaged_log_changes_nothing(served: Served) -> None:
    """The problem names the damaged line."""
    with served.sessions.begin() as session:
        make.tuned(session)
    lines = served.client.get(AT).text.splitlines(keepends=True)
    before = served.client.get(AT).content
    for damaged in (
        "",
        "no log\n",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        "".join([lines[0], lines[1].replace("fingerprint", "finger")]),
        "".join([lines[0], "[" * 100_000 + "\n"]),
        lines[0] + json.dumps({"kind": "record"}) + "\n",
    ):
        answer = served.client.post(AT, content=damaged.encode("latin-1"))
        assert answer.status_code == 422, damaged[:50]
        assert answer.json()["type"].endswith("bad-log")
        assert answer.json()["detail"].startswith("line ")
    for junk in (b"\xff\xfe\x00", gzip.compress(before), b"\x00" * 1000):
        assert served.client.post(AT, content=junk).status_code == 422
    assert served.client.get(AT).content == before


def exported_log(served: Served) -> bytes:
    """Return the log of a tuned job."""
    with served.sessions.begin() as session:
        make.tuned(session)
    return served.client.get(AT).content


def test_a_damaged_log_begins_no_transaction(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read to its end before it keeps others from writing."""
    with serving(quick) as served:
        damaged = exported_log(served) + b"damaged\n"
        monkeypatch.setattr(measure_log, "import_", None)
        answer = served.client.post(AT, content=damaged)

    assert answer.status_code == 422, answer.text
    assert answer.json()["type"].endswith("bad-log")


def test_an_import_that_takes_too_long_is_given_up(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is stored, and the next one that is faster succeeds."""
    with serving(quick) as served:
        content = exported_log(served)
        monkeypatch.setattr(record_routes, "_MAX_IMPORT_SECS", 0.0)
        slow = served.client.post(AT, content=content)
        monkeypatch.setattr(record_routes, "_MAX_IMPORT_SECS", 50.0)
        fast = served.client.post(AT, content=content)

    assert slow.status_code == 413, slow.text
    assert "tuner records import" in slow.json()["advice"]
    assert fast.status_code == 200


@on_each_database
def test_an_import_that_the_database_ends_took_too_long(
    settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that runs into the limits of the database is not an outage of it."""
    monkeypatch.setattr(record_routes, "_MAX_IMPORT_SECS", 0.2)
    limits = replace(app_state.BULK_LIMITS, statement_secs=0.4, transaction_secs=0.4)
    monkeypatch.setattr(app_state, "BULK_LIMITS", limits)
    is_sqlite = settings.tuner.database.startswith("sqlite")

    def store(session: Session, _lines: Iterable[str], **_options: bool) -> None:
        session.execute(text(COUNT if is_sqlite else "SELECT pg_sleep(60)"))

    with serving(settings) as served:
        content = exported_log(served)
        monkeypatch.setattr(measure_log, "import_", store)
        slow = served.client.post(AT, content=content)
        monkeypatch.setattr(record_routes, "_MAX_IMPORT_SECS", 50.0)
        ended = served.client.post(AT, content=content)

    assert (slow.status_code, slow.json()["type"].rpartition(":")[2]) == (413, "too-large")
    assert "tuner records import" in slow.json()["advice"]
    assert ended.json()["type"].endswith("unavailable")


def test_one_import_runs_at_a_time(quick: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one waits for it, and is asked to come again if it takes long."""
    monkeypatch.setattr(record_routes, "_WAIT_SECS", 0.1)
    began, ended = threading.Event(), threading.Event()
    check = measure_log.check

    def wait(lines: Iterable[str]) -> None:
        check(lines)
        began.set()
        assert ended.wait(20.0)

    with serving(quick) as served, ThreadPoolExecutor() as threads:
        content = exported_log(served)
        monkeypatch.setattr(measure_log, "check", wait)
        first = threads.submit(served.client.post, AT, content=content)
        assert began.wait(20.0)
        second = served.client.post(AT, content=content)
        ended.set()

    assert first.result().status_code == 200
    assert (second.status_code, second.json()["type"].rpartition(":")[2]) == (429, "busy")
    assert int(second.headers["retry-after"]) > 0


def test_a_log_that_is_too_large_is_rejected(quick: ApiSettings) -> None:
    """The limit holds without an announced length."""

    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 100_000

    with serving(ApiSettings(quick.tuner, max_upload_bytes=1000)) as served:
        assert served.client.post(AT, content=chunks()).status_code == 413


def test_a_reader_that_leaves_an_export_stops_it(quick: ApiSettings) -> None:
    """The export ends with its reader, and the server still answers and stops."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            task = rows.task(session)
            for number in range(3000):
                measure_records.add_record(
                    session, rows.failed(task, f"t{number}", error_text="x" * 2000)
                )
        with served.client.stream("GET", AT) as answer:
            next(answer.iter_raw())
        assert served.client.get("/healthz").status_code == 200


def test_an_export_of_one_target(served: Served) -> None:
    """An export contains the records of an existing target only."""
    with served.sessions.begin() as session:
        for n_cores in (2, 4):
            measure_records.add_record(
                session, rows.timed(rows.task(session, "w0", n_cores), "t", 1.0)
            )
    lines = served.client.get(AT, params={"target": 1}).text.splitlines()

    assert sum('"kind":"record"' in line for line in lines) == 1
    assert served.client.get(AT, params={"target": 9}).status_code == 404


def test_code_is_asked_for_once(quick: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a worker; what many ask for at a time is refused, and unknown records are."""
    monkeypatch.setattr(kernel_codes, "MAX_WAITING", 3)
    with serving(quick) as served:
        with served.sessions.begin() as session:
            make.tuned(session)
        at = "/api/v1/records/1/code"
        empty = served.client.get(at).json()["items"]
        asked = served.client.post(at)
        refused = served.client.post("/api/v1/records/2/code", json={"parts": ["source"]})
        unknown = served.client.post("/api/v1/records/99/code")
        wrong = served.client.post(at, json={"parts": ["binary"]})

    assert empty == []
    assert (asked.status_code, [item["part"] for item in asked.json()["items"]]) == (
        202,
        ["schedule", "source", "assembly"],
    )
    assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
    assert (unknown.status_code, wrong.status_code) == (404, 422)

"""The progress of a job over HTTP: its table in three formats, picks, history and curves."""

import csv
import gzip
import io
import time

import pytest

from api.documents import formats
from api.documents.caching import FRESH_SECS, TableCache
from api.errors import Problem
from api.settings import ApiSettings
from records import jobs
from records.tuning import events
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving
from tuner.job_replay import recording as recordings
from tuner.reporting import task_columns


def test_the_table_comes_in_three_formats(served: Served) -> None:
    """JSON, CSV and text have the same rows."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    at = f"/api/v1/jobs/{job_id}/tasks"

    view = served.client.get(at).json()
    lines = list(csv.DictReader(io.StringIO(served.client.get(f"{at}?format=csv").text)))
    text = served.client.get(at, headers={"accept": "text/plain"}).text

    assert [task["trials"] for task in view["tasks"]] == [4, 0]
    assert [(line["task"], line["trials"]) for line in lines] == [
        (task["name"], str(task["trials"])) for task in view["tasks"]
    ]
    assert text.splitlines()[2].split()[:3] == ["1", "dense_s0-w0", "1"]
    assert "latency    unknown: no best record yet for 1 of 2 tasks" in text.splitlines()


def test_every_column_is_in_csv_and_on_the_dashboard(served: Served) -> None:
    """CSV has the name of each, with six digits, and the page sorts by it."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    lines = csv.DictReader(
        io.StringIO(served.client.get(f"/api/v1/jobs/{job_id}/tasks?format=csv").text)
    )
    first, second = list(lines)
    page = served.client.get(f"/jobs/{job_id}", headers={"accept": "text/html"}).text

    assert {column.name for column in task_columns.COLUMNS} < set(first)
    assert first["latency_ms"] == f"{float(first['latency_ms']):.6g}"
    assert second["latency_ms"] == second["gflops"] == ""
    for column in task_columns.COLUMNS:
        assert f'id="sort-{column.name}"' in page
        assert f'data-label="{column.title}"' in page


def test_an_unchanged_table_gets_304(served: Served) -> None:
    """The ETag holds for every encoding, and an event changes it."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    at = f"/api/v1/jobs/{job_id}/tasks"
    first = served.client.get(at)
    plain = served.client.get(at, headers={"accept-encoding": "identity"})
    same = served.client.get(at, headers={"if-none-match": first.headers["etag"]})
    served.client.post(f"/api/v1/jobs/{job_id}/pause")
    other = served.client.get(at, headers={"if-none-match": first.headers["etag"]})

    assert first.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert plain.json() == first.json()
    assert (same.status_code, same.content) == (304, b"")
    assert (other.status_code, other.json()["job"]["state"]) == (200, "paused")


@on_each_database
def test_changes_of_other_processes_show_within_a_second(served: Served) -> None:
    """A cached table expires after FRESH_SECS."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    at = f"/api/v1/jobs/{job_id}/tasks"
    served.client.get(at)
    with served.sessions.begin() as session:
        jobs.set_state(session, job_id, "done")
    time.sleep(FRESH_SECS + 0.1)

    assert served.client.get(at).json()["job"]["state"] == "done"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "json"),
        ("*/*", "json"),
        ("text/csv", "csv"),
        ("text/csv;q=0.5, text/plain", "text"),
        ("text/html, application/json;q=0.1", "json"),
        ("text/csv;q=0, */*;q=0.1", "json"),
        ("text/csv;q=x, text/plain", "text"),
    ],
)
def test_the_best_accepted_format_is_served(accept: str | None, expected: str) -> None:
    """Quality values and wildcards of Accept are honoured."""
    assert formats.negotiate(accept) == expected


@pytest.mark.parametrize("accept", ["text/html", "image/png;q=1", ";;;", "text/csv;q=0"])
def test_other_formats_are_not_acceptable(accept: str) -> None:
    """The problem lists the available formats."""
    with pytest.raises(Problem, match="text/csv"):
        formats.negotiate(accept)


def test_picks_come_in_pages(served: Served) -> None:
    """Picks come newest first."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    page = served.client.get(f"/api/v1/jobs/{job_id}/picks?limit=1").json()

    assert [pick["sequence"] for pick in page["items"]] == [1]
    assert page["items"][0]["why"]
    assert page["next"] is None


def test_history_and_failures_are_served(served: Served) -> None:
    """A job has points of its latency, and failures by kind."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    history = served.client.get(f"/api/v1/jobs/{job_id}/history").json()
    failures = served.client.get(f"/api/v1/jobs/{job_id}/failures").json()

    assert history["points"][-1]["trials"] == 4
    assert failures["items"][0]["message"] == "Segmentation fault"


def test_a_recording_needs_tasks(quick: ApiSettings) -> None:
    """A job that is not split into tasks yet has no curves."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        answer = served.client.get(f"/api/v1/jobs/{job_id}/recording")

    assert answer.status_code == 409
    assert answer.json()["type"].endswith("wrong-state")


def test_a_recording_can_be_replayed(quick: ApiSettings) -> None:
    """A recording has the format of ``tuner replay``."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.tuned(session)
        answer = served.client.get(f"/api/v1/jobs/{job_id}/recording")
        path = quick.data_dir / "r.jsonl.gz"
        path.write_bytes(answer.content)

    assert b'"network": "mlp"' in gzip.decompress(answer.content)
    assert len(recordings.read(path).tasks) == 2


def test_a_name_is_not_a_formula() -> None:
    """A spreadsheet would run a cell that starts like one."""
    assert formats._cell("=HYPERLINK(1)") == "'=HYPERLINK(1)"
    assert formats._cell("a\r\nb") == "a  b"


def test_a_job_is_read_again_after_its_events_only(served: Served) -> None:
    """Views, of which each takes twenty queries, are as old as the last event."""
    tables = TableCache(None)  # type: ignore[arg-type] # it reads in sessions of this test
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
        first = tables.view(session, job_id)
        same = tables.view(session, job_id)

    with served.sessions.begin() as session:
        jobs.set_priority(session, job_id, 2)
        events.add_event(session, job_id, "priority", {"priority": 2})
        changed = tables.view(session, job_id)

    assert same is first
    assert (first.job.priority, changed.job.priority) == (0, 2)

"""What a job does, over HTTP: its table in three formats, kept for who polls."""

import csv
import gzip
import io
import time

import pytest

from api import formats
from api.errors import Problem
from api.response_cache import FRESH_SECS
from api.settings import ApiSettings
from records import jobs
from tests.api import make
from tests.api.conftest import Served, serving
from tuner.replay import recording as recordings


def test_the_table_comes_in_three_formats(served: Served) -> None:
    """The same rows as JSON, CSV and text."""
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
    assert text.splitlines()[2].split()[:3] == ["0", "dense_s0-w0", "1"]
    assert "latency    unknown: 1 of 2 tasks have no best record yet" in text.splitlines()


def test_who_has_the_table_is_told_so(served: Served) -> None:
    """By its tag, in every encoding; a new event is a new tag."""
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


def test_what_others_change_shows_within_a_second(served: Served) -> None:
    """Another process wrote it."""
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
def test_negotiation(accept: str | None, expected: str) -> None:
    """The best of what is accepted."""
    assert formats.negotiate(accept) == expected


@pytest.mark.parametrize("accept", ["text/html", "image/png;q=1", ";;;", "text/csv;q=0"])
def test_nothing_else_is_served(accept: str) -> None:
    """And 406 says what is."""
    with pytest.raises(Problem, match="text/csv"):
        formats.negotiate(accept)


def test_picks_come_in_pages(served: Served) -> None:
    """The newest first."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    page = served.client.get(f"/api/v1/jobs/{job_id}/picks?limit=1").json()

    assert [pick["sequence"] for pick in page["items"]] == [1]
    assert page["items"][0]["why"]
    assert page["next"] is None


def test_history_and_failures(served: Served) -> None:
    """Points of the latency, and how trials failed."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    history = served.client.get(f"/api/v1/jobs/{job_id}/history").json()
    failures = served.client.get(f"/api/v1/jobs/{job_id}/failures").json()

    assert history["points"][-1]["trials"] == 4
    assert failures["items"][0]["message"] == "Segmentation fault"


def test_a_recording_can_be_replayed(quick: ApiSettings) -> None:
    """It is what tuner replay reads."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.tuned(session)
        answer = served.client.get(f"/api/v1/jobs/{job_id}/recording")
        path = quick.data_dir / "r.jsonl.gz"
        path.write_bytes(answer.content)

    assert b"network of s0" in gzip.decompress(answer.content)
    assert len(recordings.read(path).tasks) == 2


def test_a_name_is_no_formula() -> None:
    """A spreadsheet would run it."""
    assert formats._cell("=HYPERLINK(1)") == "'=HYPERLINK(1)"
    assert formats._cell("a\r\nb") == "a  b"

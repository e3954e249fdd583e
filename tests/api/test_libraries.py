"""Libraries over HTTP: requests for builds, and downloads in whole, in parts, or not at all."""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api import app_state
from api.settings import ApiSettings
from records.service import builds
from records.tuning import events
from tests.api import make
from tests.api.conftest import Served, serving

CONTENT = bytes(range(256)) * 100
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def served(quick: ApiSettings) -> Iterator[Served]:
    """A server on SQLite: archives are files, and tests/records store their rows in both kinds."""
    with serving(quick) as opened:
        yield opened


@pytest.fixture
def at(served: Served) -> str:
    """Address of the library of a job."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
        make.built(session, job_id, served.data_dir / "archives", CONTENT, DIGEST)
    return f"/api/v1/jobs/{job_id}/library"


def test_a_library_is_downloaded_with_its_digest(served: Served, at: str) -> None:
    """The digest is in the ETag and in Repr-Digest."""
    answer = served.client.get(at)

    assert answer.content == CONTENT
    assert answer.headers["etag"] == f'"{DIGEST}"'
    expected = base64.b64encode(bytes.fromhex(DIGEST)).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{expected}:"
    assert answer.headers["content-type"] == "application/gzip"
    assert "attachment" in answer.headers["content-disposition"]


def test_a_download_holds_one_connection_at_a_time(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many downloads as there are connections cannot wait for each other."""
    limits = replace(app_state.REQUEST_LIMITS, pool_size=1, max_overflow=0, wait_secs=2.0)
    monkeypatch.setattr(app_state, "REQUEST_LIMITS", limits)
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.tuned(session)
            make.built(session, job_id, served.data_dir / "archives", CONTENT, DIGEST)
        answer = served.client.get(f"/api/v1/jobs/{job_id}/library")

    assert (answer.status_code, answer.content) == (200, CONTENT)


def test_a_download_is_resumed(served: Served, at: str) -> None:
    """A range is served while the library is the same; otherwise the whole file."""
    start = served.client.get(at, headers={"range": "bytes=0-99"})
    tag = {"if-range": start.headers["etag"]}
    rest = served.client.get(at, headers={"range": "bytes=100-", **tag})
    changed = served.client.get(at, headers={"range": "bytes=100-", "if-range": '"other"'})

    assert (start.status_code, rest.status_code) == (206, 206)
    assert start.content + rest.content == CONTENT
    assert rest.headers["content-range"] == f"bytes 100-{len(CONTENT) - 1}/{len(CONTENT)}"
    assert (changed.status_code, changed.content) == (200, CONTENT)


def test_head_and_conditional_requests(served: Served, at: str) -> None:
    """HEAD returns the headers alone, and a current ETag gets 304."""
    head = served.client.head(at)
    same = served.client.get(at, headers={"if-none-match": f'"{DIGEST}"'})

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(CONTENT))
    assert (same.status_code, same.content) == (304, b"")


def test_an_invalid_range_is_a_problem(served: Served, at: str) -> None:
    """An invalid range gets a problem document, not plain text."""
    for ranges in ("bytes=99999999-", "bytes=x", "lines=1-2", "bytes=5-2", "x"):
        answer = served.client.get(at, headers={"range": ranges})
        assert answer.status_code == 416, ranges
        assert answer.json()["type"].endswith("bad-range")


def test_a_build_is_requested_and_followed(served: Served) -> None:
    """A queued build is not requested twice, and a missing library is a conflict with advice."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    at = f"/api/v1/jobs/{job_id}"
    early = served.client.get(f"{at}/library")
    first = served.client.post(f"{at}/build")
    again = served.client.post(f"{at}/build", json={"strict": False})
    strict = served.client.post(f"{at}/build", json={"strict": True})
    read = served.client.get(f"{at}/builds/{first.json()['id']}")

    assert (early.status_code, first.status_code) == (409, 202)
    assert "/api/v1/jobs/{id}/build" in early.json()["advice"]
    assert first.json() == again.json() == read.json()
    assert strict.json()["id"] != first.json()["id"]
    assert served.client.get(f"/api/v1/jobs/{job_id + 1}/builds/1").status_code == 404
    with served.sessions() as session:
        assert events.events_after(session, job_id, 0)[-1].kind == "build"


def test_an_impossible_build_is_rejected(served: Served) -> None:
    """A build needs tasks, an existing network, and a job of the service."""
    from tests.records import make as rows

    with served.sessions.begin() as session:
        waits, runs, foreign = make.job(session).id, make.tuned(session, "s1"), rows.job(session)
    path = "/api/v1/jobs/{}/build"

    assert served.client.post(path.format(waits)).status_code == 409
    wrong = served.client.post(path.format(runs), json={"model_index": 1})
    assert wrong.status_code == 422
    assert served.client.post(path.format(foreign)).status_code == 409


def test_an_archive_elsewhere_is_never_served(served: Served, tmp_path: Path) -> None:
    """A path outside the folder of archives is not served, even if the database has it."""
    (tmp_path / "secret.tar.gz").write_bytes(b"secret")
    (served.data_dir / "archives" / "link.tar.gz").symlink_to(tmp_path / "secret.tar.gz")
    for name in ("../tuner.db", "/etc/passwd", "..", "", "a/../../x.tar.gz", "link.tar.gz"):
        with served.sessions.begin() as session:
            job_id = make.tuned(session, f"job of {name}")
            build = builds.request_build(session, job_id)
            builds.set_build(session, build.id, "done", archive=name, sha256=DIGEST, n_bytes=1)

        answer = served.client.get(f"/api/v1/jobs/{job_id}/library")

        assert answer.status_code == 409, name
        assert answer.json()["type"].endswith("not-built")

"""Jobs over HTTP: lists, pages and control."""

from typing import Any

import pytest

from records import jobs
from records.models import JobState
from records.service import leases
from records.service.owners import audit
from records.tuning import attempts
from tests.api import make
from tests.api.conftest import Served, on_each_database


@on_each_database
def test_jobs_are_listed_page_by_page(served: Served) -> None:
    """In every order, the pages together contain each job once, sorted."""
    with served.sessions.begin() as session:
        for number in range(7):
            make.job(session, f"Job {number}", priority=number % 3)

    for sort in ("-created", "created", "-priority", "priority", "-name", "name", "-updated"):
        names: list[str] = []
        cursor = None
        while True:
            asked = {"sort": sort, "limit": 3} | ({"cursor": cursor} if cursor else {})
            page = served.client.get("/api/v1/jobs", params=asked).json()
            names += [job["name"] for job in page["items"]]
            if (cursor := page["next"]) is None:
                break
        assert len(set(names)) == len(names) == 7, sort
        if sort.endswith("name"):
            assert names == sorted(names, reverse=sort.startswith("-"))


@on_each_database
def test_jobs_are_filtered_by_state_and_name(served: Served) -> None:
    """A filter takes part of the name in any case, and several states."""
    with served.sessions.begin() as session:
        first, second = make.job(session, "ResNet"), make.job(session, "other")
        jobs.set_state(session, second.id, "paused")

    def ids(**asked: Any) -> list[int]:
        answer = served.client.get("/api/v1/jobs", params=asked)
        return [job["id"] for job in answer.json()["items"]]

    assert ids(q="resn") == [first.id]
    assert ids(q="%") == []
    assert ids(state="paused") == [second.id]
    assert ids(state=["paused", "queued"]) == [second.id, first.id]


@pytest.mark.parametrize("cursor", ["x", "bm8", "WyItY3JlYXRlZCIsIngiLDFd", "é", "A" * 900])
def test_a_cursor_of_another_list_is_rejected(shared: Served, cursor: str) -> None:
    """A foreign cursor is a problem document, not an internal error."""
    answer = shared.client.get("/api/v1/jobs", params={"cursor": cursor})

    assert answer.status_code == 422
    assert answer.json()["detail"] == "the cursor is not one of this list"


def test_a_job_comes_with_its_details(served: Served) -> None:
    """A job comes with failures, builds, the last pick, and working links."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    answer = served.client.get(f"/api/v1/jobs/{job_id}").json()

    assert answer["job"]["trials"] == 4
    assert answer["failures"][0]["kind"] == "run_error"
    assert answer["last_pick"]["reason"] == "warm-up"
    for name in ("self", "tasks", "picks", "history"):
        assert served.client.get(answer["links"][name]).status_code == 200, name


@pytest.mark.parametrize(
    ("state", "action", "status", "becomes"),
    [
        ("queued", "cancel", 200, "cancelled"),
        ("running", "cancel", 200, "cancelled"),
        ("paused", "cancel", 200, "cancelled"),
        ("done", "cancel", 409, "done"),
        ("running", "pause", 200, "paused"),
        ("paused", "pause", 200, "paused"),
        ("failed", "pause", 409, "failed"),
        ("paused", "resume", 200, "queued"),
        ("failed", "resume", 200, "queued"),
        ("cancelled", "resume", 200, "queued"),
        ("done", "resume", 409, "done"),
        ("running", "resume", 200, "running"),
    ],
)
def test_a_job_changes_as_its_state_allows(
    shared: Served, state: JobState, action: str, status: int, becomes: str
) -> None:
    """An allowed change is made and logged; any other is a conflict and is not logged."""
    with shared.sessions.begin() as session:
        job_id = make.job(session, f"{state} {action}").id
        jobs.set_state(session, job_id, state)
        leases.acquire(session, leases.COORDINATOR, "a worker", 60)

    answer = shared.client.post(f"/api/v1/jobs/{job_id}/{action}")

    assert answer.status_code == status, answer.text
    with shared.sessions() as session:
        assert jobs.get_job(session, job_id).state == becomes
        noted = [row.action for row in audit.actions(session, job_id=job_id)]
    assert noted == ([action] if status == 200 else [])
    if status == 200:
        assert answer.json()["state"] == becomes


def test_a_quarantined_job_is_released(served: Served) -> None:
    """Its state says so, a resumption is refused with the way out, and a release queues it."""
    with served.sessions.begin() as session:
        job_id = make.job(session).id
        attempts.quarantine_job(session, job_id, "loading the model")
    path = f"/api/v1/jobs/{job_id}"

    job = served.client.get(path).json()["job"]
    assert (job["state"], job["quarantined"]) == ("failed", True)
    assert "died 3 times while loading the model" in job["message"]
    page = served.client.get(f"/jobs/{job_id}").text
    assert "died 3 times" in page
    assert f'action="/jobs/{job_id}/release"' in page
    refused = served.client.post(f"{path}/resume")
    assert (refused.status_code, "releases it" in refused.json()["advice"]) == (409, True)

    released = served.client.post(f"{path}/release").json()
    assert (released["state"], released["quarantined"]) == ("queued", False)
    assert served.client.post(f"{path}/release").status_code == 409


def test_a_job_of_a_command_line_is_not_resumed_here(served: Served) -> None:
    """The service would not run it, so the advice names the command line."""
    from tests.records import make as rows

    with served.sessions.begin() as session:
        job_id = rows.job(session)
        jobs.set_state(session, job_id, "paused")

    answer = served.client.post(f"/api/v1/jobs/{job_id}/resume")

    assert answer.status_code == 409
    assert "tuner tune" in answer.json()["advice"]


def test_a_larger_budget_resumes_a_job_that_is_done(served: Served) -> None:
    """A larger budget queues the job again; a smaller one changes nothing."""
    with served.sessions.begin() as session:
        job_id = make.job(session).id
        jobs.set_state(session, job_id, "done")
    at = f"/api/v1/jobs/{job_id}/budget"

    assert served.client.post(at, json={"trials": 50}).json()["state"] == "done"
    grown = served.client.post(at, json={"trials": 500}).json()

    assert (grown["state"], grown["budget_trials"]) == ("queued", 500)
    assert served.client.post(at, json={}).status_code == 422


def test_a_priority_is_set(served: Served) -> None:
    """A priority is stored, within its bounds."""
    with served.sessions.begin() as session:
        job_id = make.job(session).id
    at = f"/api/v1/jobs/{job_id}/priority"

    assert served.client.post(at, json={"priority": 5}).json()["priority"] == 5
    assert served.client.post(at, json={"priority": 500}).status_code == 422


def test_a_deleted_job_is_hidden(served: Served) -> None:
    """A deleted job disappears from lists, tables and events; a running job cannot be deleted."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    at = f"/api/v1/jobs/{job_id}"
    assert served.client.delete(at).status_code == 409
    served.client.post(f"{at}/cancel")
    assert served.client.get(f"{at}/tasks").status_code == 200

    assert served.client.delete(at).status_code == 204

    for path in ("", "/tasks", "/events", "/picks", "/history", "/failures", "/library"):
        assert served.client.get(at + path).status_code == 404, path
    assert served.client.get("/api/v1/jobs").json()["items"] == []


def test_two_jobs_are_compared(served: Served) -> None:
    """By their own measurements, because best records belong to all jobs of a target."""
    with served.sessions.begin() as session:
        first, second = make.tuned(session, "one"), make.tuned(session, "two")
    compared = served.client.get(f"/api/v1/jobs/{first}/compare/{second}").json()
    same = served.client.get(f"/api/v1/jobs/{first}/compare/{first}").json()

    assert (compared["a"]["id"], compared["b"]["id"]) == (first, second)
    assert "different networks" in compared["verdict"]
    assert {task["faster"] for task in compared["tasks"]} == {""}
    assert "equal" in {task["faster"] for task in same["tasks"]}
    assert served.client.get(f"/api/v1/jobs/{first}/compare/99").status_code == 404

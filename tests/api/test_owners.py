"""Jobs of one token are invisible to others, readable for its project, and open to admins."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from api.settings import ApiSettings
from records.models import Job, Library
from records.service.owners import tokens
from records.service.owners.quotas import Quotas
from records.service.service_models import Upload
from records.tuning import profiles
from tests.api import make
from tests.api.conftest import Served, serving
from tests.api.test_access import needed_scope, routes
from tests.api.test_profiles import profile_of
from tuner.profiling.results import as_json

JOB = "{job_id}"


class Team:
    """A served API with a tuned job of ada, and the headers of several tokens."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.headers: dict[str, dict[str, str]] = {}
        with served.sessions.begin() as session:
            for name, scope, project in (
                ("ada", "submit", "vision"),
                ("bob", "submit", "vision"),
                ("eve", "submit", None),
                ("root", "admin", None),
            ):
                _, secret = tokens.create_token(session, name, [scope], project=project)
                self.headers[name] = {"authorization": f"Bearer {secret}"}
            self.job = make.tuned(session, "s0", owner="ada", project="vision")
            make.built(session, self.job, served.data_dir / "archives", b"library", "0" * 64)
            job = session.get_one(Job, self.job)
            session.add(Library(key="key", target_id=job.target_id, manifest={}, path=""))
            assert job.network_id
            assert job.target_id
            content = as_json(profile_of("s0-w0"))
            profiles.store_profile(session, job.network_id, job.target_id, content)

    def status(self, name: str, method: str, path: str, **options: Any) -> int:
        """Send a request with a token and return its status."""
        with self.served.client.stream(
            method, path, headers=self.headers[name], **options
        ) as answer:
            return answer.status_code

    def get(self, name: str, path: str) -> Any:
        """Read JSON with a token."""
        return self.served.client.get(f"/api/v1/{path}", headers=self.headers[name]).json()

    def tune(self, name: str, **fields: str) -> Any:
        """Submit a model with a token."""
        files: dict[str, Any] = {k: (None, v) for k, v in {"trials": "10", **fields}.items()}
        files["model"] = ("m.onnx", make.ONNX)
        return self.served.client.post("/api/v1/tune", files=files, headers=self.headers[name])


@pytest.fixture
def team(quick: ApiSettings) -> Iterator[Team]:
    """A team of four tokens, on SQLite."""
    with serving(replace(quick, require_tokens=True)) as served:
        yield Team(served)


def test_every_route_of_a_job_knows_its_owner(team: Team, quick: ApiSettings) -> None:
    """Strangers get 404 everywhere, the project reads, and only the owner and admins change."""
    of_jobs = [
        route for route in routes(quick) if JOB in route[1] and needed_scope(*route) != "admin"
    ]
    for method, template in of_jobs:
        path = re.sub(r"{\w+}", "1", template)
        is_change = needed_scope(method, template) == "submit"
        assert team.status("eve", method, path) == 404, path
        status = team.status("bob", method, path)
        assert status == 403 if is_change else status < 400, (path, status)
    for name in ("ada", "root"):
        for method, template in of_jobs:
            if not template.endswith("/delete") and method != "DELETE":
                status = team.status(name, method, re.sub(r"{\w+}", "1", template))
                assert status not in (401, 403, 404), (name, template)

    assert len(of_jobs) > 20


def test_lists_have_what_a_token_may_read(team: Team) -> None:
    """Jobs, networks and libraries of others are in no list, count or page."""
    for name, n_seen in (("ada", 1), ("bob", 1), ("eve", 0), ("root", 1)):
        for path in ("jobs", "networks", "libraries"):
            assert len(team.get(name, path)["items"]) == n_seen, (name, path)
        answers = [
            team.status(name, "GET", path)
            for path in (
                "/api/v1/networks/1/tasks",
                "/api/v1/records/best?job=1",
                "/compare?a=1&b=1",
            )
        ]
        assert answers == ([200] * 3 if n_seen else [404] * 3), name
        page = team.served.client.get("/", headers=team.headers[name]).text
        assert ("job-1" in page) == bool(n_seen)
    assert team.get("eve", "records/best")["items"], "best records are common to all"


def test_pages_offer_changes_to_the_owner(team: Team) -> None:
    """A member of the project sees the job without its forms."""
    for name, offered in (("ada", True), ("bob", False), ("root", True)):
        page = team.served.client.get("/jobs/1", headers=team.headers[name]).text
        assert ("do-pause" in page) == offered
        assert ('action="/jobs/1/build"' in page) == offered
        assert "ada, project vision" in page


def test_equal_requests_of_two_tokens_are_two_jobs(team: Team) -> None:
    """Neither changes the job of the other; the same token gets its own job again."""
    first, second, again = team.tune("ada"), team.tune("eve", trials="20"), team.tune("ada")

    assert first.json()["job"]["id"] == again.json()["job"]["id"]
    assert first.json()["job"]["id"] != second.json()["job"]["id"]
    assert [answer.json()["job"]["owner"] for answer in (first, second)] == ["ada", "eve"]
    assert (first.json()["job"]["project"], second.json()["job"]["project"]) == ("vision", None)
    assert again.json()["job"]["budget_trials"] == 10
    with team.served.sessions() as session:
        sizes = session.execute(select(Upload.owner, Upload.n_bytes).order_by(Upload.id)).all()
    n_bytes = len(make.ONNX)
    assert [tuple(row) for row in sizes] == [(name, n_bytes) for name in ("ada", "eve", "ada")]


def test_priorities_are_bounded_by_role(team: Team) -> None:
    """Above the limit a priority needs the scope admin, however it is set."""
    assert team.tune("ada", priority="4").status_code == 403
    at = "/api/v1/jobs/1/priority"
    assert team.status("ada", "POST", at, json={"priority": 3}) == 200
    assert team.status("ada", "POST", at, json={"priority": 4}) == 403
    assert team.status("root", "POST", at, json={"priority": 30}) == 200


def test_a_service_without_tokens_owns_no_jobs(quick: ApiSettings) -> None:
    """Its jobs belong to the administrators once it requires tokens."""
    with serving(quick) as served:
        files = {"zoo": (None, "mlp"), "trials": (None, "1")}
        assert served.client.post("/api/v1/tune", files=files).json()["job"]["owner"] is None
    with serving(replace(quick, require_tokens=True)) as served, served.sessions.begin() as session:
        secrets = [tokens.create_token(session, s, [s])[1] for s in ("submit", "admin")]
        session.commit()
        statuses = [
            served.client.get("/api/v1/jobs/1", headers={"authorization": f"Bearer {secret}"})
            for secret in secrets
        ]
    assert [answer.status_code for answer in statuses] == [404, 200]


def test_quotas_answer_with_what_helps(quick: ApiSettings) -> None:
    """429 with Retry-After if waiting helps, 403 if not; admins have no quotas."""
    settings = replace(quick, require_tokens=True, quotas=Quotas(jobs=2, trials=40))
    with serving(settings) as served:
        team = Team(served)
        assert team.tune("eve", trials="30").status_code == 202
        full, never = (
            team.tune("eve", trials="20", seed="1"),
            team.tune("eve", trials="50", seed="2"),
        )
        budget = "/api/v1/jobs/2/budget"
        raised = team.status("eve", "POST", budget, json={"trials": 41})
        form = served.client.post(
            "/jobs",
            files={"zoo": (None, "mlp"), "trials": (None, "20")},
            headers=team.headers["eve"],
        )
        usage = team.get("eve", "usage")
        admin = [team.tune("root", trials="999", seed=str(seed)).status_code for seed in range(3)]

    assert (full.status_code, full.json()["type"].rpartition(":")[2]) == (429, "quota")
    assert (full.json()["quota"], int(full.headers["retry-after"]) > 0) == ("trials", True)
    assert (never.status_code, never.json()["type"].rpartition(":")[2]) == (403, "quota-too-small")
    assert raised == 429
    assert form.status_code == 429
    assert "Quota in use" in form.text
    assert (usage["name"], usage["project"], usage["max_priority"]) == ("eve", None, 3)
    assert {q["quota"]: (q["used"], q["limit"]) for q in usage["quotas"]}["trials"] == (30, 40)
    assert admin == [202] * 3


def test_a_renewed_token_keeps_its_jobs(team: Team) -> None:
    """The old secret ends, and the new one is the same owner."""
    with team.served.sessions.begin() as session:
        _, secret = tokens.renew_token(session, "ada")
    header = {"authorization": f"Bearer {secret}"}

    assert team.served.client.get("/api/v1/jobs/1", headers=header).status_code == 200


def test_a_model_that_is_tuned_again_was_sent_once(quick: ApiSettings) -> None:
    """Neither the quota of what is sent nor that of the disk counts it twice."""
    with serving(replace(quick, require_tokens=True)) as served:
        team = Team(served)
        first = team.tune("eve", seed="1").json()["job"]["id"]
        before = _uses(team)
        form = {"models_of": (None, str(first)), "trials": (None, "10"), "seed": (None, "2")}
        again = served.client.post("/api/v1/tune", files=form, headers=team.headers["eve"])
        after = _uses(team)
        # The job of another request brings the model for a third one.
        form["models_of"], form["seed"] = (None, str(again.json()["job"]["id"])), (None, "3")
        third = served.client.post("/api/v1/tune", files=form, headers=team.headers["eve"])

    assert (again.status_code, third.status_code) == (202, 202)
    assert before["upload_mb"] > 0
    assert {name: after[name] for name in ("upload_mb", "disk_mb")} == {
        name: before[name] for name in ("upload_mb", "disk_mb")
    }


def _uses(team: Team) -> dict[str, float]:
    """Return what eve uses of each quota."""
    return {quota["quota"]: quota["used"] for quota in team.get("eve", "usage")["quotas"]}

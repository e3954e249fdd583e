"""Tags and notes by REST and in the dashboard."""

from dataclasses import replace

import pytest

from api.settings import ApiSettings
from records.service.owners import tokens
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving
from tuner.client import TunerClient


def submit(served: Served, *tags: str, **fields: str) -> int:
    """Submit a job, and return its number."""
    form = [("zoo", (None, "mlp")), ("trials", (None, "8"))]
    form += [("tag", (None, tag)) for tag in tags]
    form += [(name, (None, text)) for name, text in fields.items()]
    answer = served.client.post("/api/v1/tune", files=form)
    assert answer.status_code == 202, answer.text
    return int(answer.json()["job"]["id"])


@on_each_database
def test_a_job_is_submitted_with_tags_and_found_by_them(served: Served) -> None:
    """Requests that differ in tags alone are one job, with the tags of the last one."""
    job_id = submit(served, "night, vision", "x1")
    other = submit(served, "night", seed="1")

    with TunerClient(str(served.client.base_url)) as client:
        (tagged,) = client.jobs(tags=["night", "x1"])
        assert (tagged.id, tagged.tags) == (job_id, ["night", "vision", "x1"])
        assert {job.id for job in client.jobs(tags=["night"])} == {job_id, other}
        assert submit(served, "day") == job_id
        assert submit(served) == job_id
        assert client.job(job_id).job.tags == ["day"]


def test_labels_are_edited(served: Served) -> None:
    """A note stays when tags alone are sent."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
    with TunerClient(str(served.client.base_url)) as client:
        client.label(job_id, tags=["release"], note="first line\nsecond")
        edited = client.label(job_id, tags=[])

    assert (edited.tags, edited.note) == ([], "first line\nsecond")


@pytest.mark.parametrize(
    "body",
    [
        {"tags": ["a" * 51]},
        {"tags": [f"t{number}" for number in range(21)]},
        {"tags": ["a\u0007b"]},
        {"note": "n" * 4001},
        {"note": "\u0000"},
        {"name": "other"},
    ],
)
def test_wrong_labels_are_refused(shared: Served, body: dict[str, object]) -> None:
    """Nothing changes."""
    with shared.sessions.begin() as session:
        job_id = make.job(session, "labelled").id

    assert shared.client.patch(f"/api/v1/jobs/{job_id}", json=body).status_code == 422
    assert shared.client.patch("/api/v1/jobs/999", json={"note": "n"}).status_code == 404


def test_only_the_owner_edits(quick: ApiSettings) -> None:
    """The other tokens of the project read the labels."""
    with serving(replace(quick, require_tokens=True)) as served:
        with served.sessions.begin() as session:
            secrets = [
                tokens.create_token(session, name, ["submit"], project="vision")[1]
                for name in ("a", "b")
            ]
            job_id = make.job(session, owner="a", project="vision").id
        owner, other = ({"authorization": f"Bearer {secret}"} for secret in secrets)
        path = f"/api/v1/jobs/{job_id}"
        statuses = [
            served.client.patch(path, json={"note": "mine"}, headers=headers).status_code
            for headers in (owner, other)
        ]
        note = served.client.get(path, headers=other).json()["job"]["note"]

    assert (statuses, note) == ([200, 403], "mine")


def test_pages_show_and_edit_labels(quick: ApiSettings) -> None:
    """Text is escaped, a tag links to the jobs that have it, and the form keeps lines."""
    with serving(quick) as served:
        job_id = submit(served, "night")
        other = submit(served, seed="1")
        form = {"tags": "night <b>bold</b>", "note": "one\r\n<script>alert(1)</script>"}
        origin = {"origin": str(served.client.base_url)}
        saved = served.client.post(f"/jobs/{job_id}/labels", data=form, headers=origin)
        page = served.client.get(f"/jobs/{job_id}").text
        listed = served.client.get("/", params={"tag": "night"}).text
        copied = served.client.get("/", params={"copy": job_id}).text
        note = served.client.get(f"/api/v1/jobs/{job_id}").json()["job"]["note"]
        refused = served.client.post(
            f"/jobs/{job_id}/labels", data={"tags": "t" * 60}, headers=origin
        )

    assert saved.status_code == 303
    assert note == "one\n<script>alert(1)</script>"
    for text in (page, listed):
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text
        assert 'href="/?tag=%3Cb%3Ebold%3C/b%3E"' in text
    assert f'id="job-{job_id}"' in listed
    assert f'id="job-{other}"' not in listed
    assert 'value="&lt;b&gt;bold&lt;/b&gt; night"' in copied
    assert refused.status_code == 422

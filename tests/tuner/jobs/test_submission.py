"""Requests as rows: what is refused, what is one job, what comes back."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from records import database, jobs, submissions
from records.models import Job
from tests.engines.toy_network import Workshop
from tuner.errors import RequestError
from tuner.jobs.goals import Goal
from tuner.jobs.preparation import ModelRequest
from tuner.jobs.requests import TuneRequest
from tuner.jobs.submission import request_of, resolve, submit_request, upload_reference

SHA256 = "ab" * 32
UPLOAD = f"upload:{SHA256}.onnx"
REQUEST = TuneRequest(
    ModelRequest(UPLOAD, "llvm", {"data": (1, 3, 8, 8)}, 7, "mine"),
    (ModelRequest("zoo:mlp"),),
    trials=100,
    goal=Goal("requirements", required_secs={"mine": 1e-3}),
    evaluator={"repeat": 4},
)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A transaction on an empty database."""
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    with database.sessions(engine).begin() as opened:
        yield opened
    engine.dispose()


def submit(session: Session, request: TuneRequest = REQUEST, name: str = "") -> Job:
    """Submit, and return the job."""
    return submit_request(session, request, name)[0]


def test_a_request_comes_back_as_it_was(session: Session) -> None:
    """All of it, from the row of its job."""
    job = submit(session)
    session.expire_all()

    assert job.request is not None
    assert request_of(job.request) == REQUEST
    assert (job.name, job.state, job.budget_trials) == ("mine + mlp", "queued", 100)


def test_references_are_resolved_within_the_data_directory(session: Session) -> None:
    """An upload becomes its file, a zoo network stays."""
    stored = submit(session).request
    assert stored is not None

    first, second = request_of(stored, Path("/data")).models

    assert first.reference == f"/data/uploads/{SHA256}.onnx"
    assert (second.reference, second.name) == ("zoo:mlp", "mlp")


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 7},
        {"seconds": 3.0},
        {"priority": 3},
        {"trials_per_round": 8},
        {"more_models": (ModelRequest("zoo:mlp", name="other"),)},
        {"evaluator": {"repeat": 4, "number": 1}},
        {"model": REQUEST.more_models[0], "more_models": (REQUEST.model,)},
    ],
)
def test_what_does_not_make_another_job(session: Session, changes: dict[str, Any]) -> None:
    """Limits, priority, names, the order of models, and defaults that are spelled out."""
    first, again = submit(session), submit(session, replace(REQUEST, **changes), "called")

    assert again.id == first.id
    assert again.name == "called"


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"more_models": ()},
        {"goal": Goal("requirements", required_secs={"mine": 2e-3})},
        {"allocator": "round-robin"},
        {"cost_model": "random"},
        {"evaluator": {"repeat": 5}},
        {"model": replace(REQUEST.model, random_weights=None)},
        {"model": replace(REQUEST.model, inputs={})},
        {"model": replace(REQUEST.model, target="cuda")},
    ],
)
def test_what_makes_another_job(session: Session, changes: dict[str, Any]) -> None:
    """Whatever changes what is measured, or how."""
    assert submit(session, replace(REQUEST, **changes)).id != submit(session).id


@pytest.mark.parametrize(
    "reference",
    [
        "/etc/passwd",
        "model.onnx",
        "upload:../../etc/passwd",
        f"upload:{SHA256}",
        f"upload:{SHA256}.pt2",
        f"upload:{SHA256.upper()}.onnx",
        f"{UPLOAD}\n",
        f"upload:../{SHA256}.onnx",
        "zoo:a\nb",
        "",
    ],
)
def test_no_other_reference_is_taken(session: Session, reference: str) -> None:
    """Neither from a user nor, should one come to be there, from the database."""
    with pytest.raises(RequestError, match="neither an uploaded"):
        submit(session, TuneRequest(ModelRequest(reference)))
    with pytest.raises(RequestError, match="neither an uploaded"):
        resolve(reference, Path("/data"))


@pytest.mark.parametrize(("sha256", "suffix"), [("../a", ".onnx"), (SHA256, ".pt2")])
def test_an_upload_is_named_by_its_content_only(sha256: str, suffix: str) -> None:
    """A name that is no hash names nothing."""
    with pytest.raises(RequestError, match="names no uploaded"):
        upload_reference(sha256, suffix)
    assert upload_reference(SHA256) == UPLOAD


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": -1}, "bad budget"),
        ({"trials": 10**10}, "--trials must be at most"),
        ({"seconds": float("inf")}, "bad budget"),
        ({"trials": 0, "seconds": -1.0}, "bad budget"),
        ({"priority": 10**6}, "--priority must lie in"),
        ({"trials_per_round": 0}, "--trials-per-round"),
        ({"allocator": "best"}, "unknown allocator"),
        ({"build_timeout_secs": float("inf")}, "finite"),
        ({"evaluator": {"timeout_secs": float("inf")}}, "finite"),
        ({"evaluator": {"repeat": 1}}, "bad evaluator setting"),
        ({"model": ModelRequest("zoo:mlp", name="a\0b")}, "printable"),
        ({"model": ModelRequest("zoo:mlp", name="x" * 201)}, "characters"),
        ({"model": ModelRequest("zoo:mlp", random_weights=-1)}, "at least 0"),
    ],
)
def test_a_wrong_request_stores_nothing(
    session: Session, changes: dict[str, Any], message: str
) -> None:
    """The message is that of the command line."""
    with pytest.raises(RequestError, match=message):
        submit(session, replace(REQUEST, **changes))

    assert jobs.list_jobs(session) == []


def test_a_priority_that_is_not_given_stays(session: Session) -> None:
    """A new job has 0, and 0 can be asked for."""
    assert submit(session).priority == 0
    assert submit(session, replace(REQUEST, priority=3)).priority == 3
    assert submit(session).priority == 3
    assert submit(session, replace(REQUEST, priority=0)).priority == 0


def test_limits_grow_and_a_job_that_was_done_goes_on(session: Session) -> None:
    """Asking for less, or for as much, changes nothing."""
    job = submit(session)
    jobs.set_state(session, job.id, "done")

    assert submit(session, replace(REQUEST, trials=50)).state == "done"
    assert submit(session, replace(REQUEST, trials=None)).state == "done"
    more = submit(session, replace(REQUEST, trials=200))
    assert (more.state, more.budget_trials) == ("queued", 200)


def test_a_job_that_was_only_split_into_tasks_can_be_tuned_by_default(workshop: Workshop) -> None:
    """No trials first, and then as many as a job gets without a limit."""
    request = TuneRequest(ModelRequest("zoo:mlp"), trials=0)
    prepared = workshop.prepare()
    with workshop.sessions.begin() as session:
        job = submit(session, request)
        submissions.assign(session, job.id, prepared.network_id, prepared.target_id, {})
        jobs.set_state(session, job.id, "done")

    with workshop.sessions.begin() as session:
        again = submit(session, replace(request, trials=None))

    assert (again.id, again.state, again.budget_trials) == (job.id, "queued", 64 * 4)

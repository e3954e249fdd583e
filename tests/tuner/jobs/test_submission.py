"""Submitted requests: validation, identity of jobs, and reading of stored rows."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from records import database, jobs
from records.models import Job
from records.service import submissions
from tests.engines.toy_network import Workshop
from tuner.errors import RequestError
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.jobs.submission import request_of, resolve, submit_request, upload_reference
from tuner.settings.request_caps import RequestCaps

SHA256 = "ab" * 32
UPLOAD = f"upload:{SHA256}.onnx"
MINE = ModelRequest(UPLOAD, "llvm", {"data": (1, 3, 8, 8)}, 7, "mine")
MLP = ModelRequest("zoo:mlp")
FIELDS: dict[str, Any] = {
    "trials": 100,
    "objective": "requirements",
    "require_ms": {"mine": 9.0},
    "stop_below_ms": 0.25,
    "priority": 3,
    "repeat": 4,
    "run_timeout": 9.0,
}
REQUEST = TuneRequest((MINE, MLP), TuneSpec(**FIELDS))
BUCKETS = {"batch": ((1, 2.0), (4, 1.0)), "sequence": ()}
SUBMISSION = "01674206cc8960d24d9e1f6476893bb76ca55acc77fa1b1c6353928db0682a0f"
SUBMISSION_OF_MLP = "6c3c105081e8be333d186613583d7507055b31cd82f3ae8d38cae175df967cd6"


def changed(**fields: Any) -> TuneRequest:
    """Return the request with other fields of its spec, or other models."""
    models = fields.pop("models", REQUEST.models)
    return TuneRequest(models, TuneSpec(**{**FIELDS, **fields}))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A transaction on an empty database."""
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    with database.sessions(engine).begin() as opened:
        yield opened
    engine.dispose()


def submit(session: Session, request: TuneRequest = REQUEST, name: str = "") -> Job:
    """Submit a request and return its job."""
    return submit_request(session, request, name)[0]


def test_a_request_comes_back_as_it_was(session: Session) -> None:
    """The row of a job holds the whole request."""
    job = submit(session)
    session.expire_all()

    assert job.request is not None
    assert request_of(job.request) == REQUEST
    assert (job.name, job.state, job.budget_trials) == ("mine + mlp", "queued", 100)


@pytest.mark.parametrize(
    ("option", "above", "limit"),
    [
        ("run_timeout", 3600.0, "120"),
        ("build_timeout", 301.0, "300"),
        ("cooldown_ms", 3_600_000, "1000"),
        ("min_repeat_ms", 1001, "1000"),
        ("repeat", 10_000, "100"),
        ("trials_per_round", 10**9, "256"),
    ],
)
def test_a_request_that_would_hold_a_device_for_long_is_refused(
    session: Session, option: str, above: float, limit: str
) -> None:
    """The message has the limit and the setting of the operator; the limit itself is accepted."""
    with pytest.raises(RequestError, match=f"at most {limit} .* max_{option}") as caught:
        submit(session, changed(**{option: above}))

    assert caught.value.field == option
    assert submit(session, changed(**{option: float(limit)})).state == "queued"


def test_the_operator_raises_the_limits_of_requests(session: Session) -> None:
    """A request within the limits of this service is accepted, whatever the defaults are."""
    caps = RequestCaps(max_repeat=5000)

    job, _ = submit_request(session, changed(repeat=5000), "", caps=caps)

    assert job.state == "queued"


def test_buckets_come_back_as_they_were(session: Session) -> None:
    """Sizes, weights and masks survive the JSON of the row."""
    asked = TuneRequest((replace(MINE, inputs={}, buckets=BUCKETS, masks={"mask": 1.0}),))
    job = submit(session, asked)
    session.expire_all()

    assert job.request is not None
    assert request_of(job.request) == asked


@pytest.mark.parametrize(
    ("request_", "submission"),
    [(REQUEST, SUBMISSION), (TuneRequest((MLP,)), SUBMISSION_OF_MLP)],
)
def test_a_request_finds_its_job(session: Session, request_: TuneRequest, submission: str) -> None:
    """Versions of this program agree on the hash that identifies a job."""
    assert submit(session, request_).submission == submission


def test_references_are_resolved_within_the_data_directory(session: Session) -> None:
    """An upload becomes the path of its file; a zoo network stays."""
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
        {"stop_below_ms": None},
        {"models": (MINE, ModelRequest("zoo:mlp", name="other"))},
        {"number": 1},
        {"models": (MLP, MINE)},
    ],
)
def test_some_changes_do_not_make_another_job(session: Session, changes: dict[str, Any]) -> None:
    """Limits, priority, names and the order of models are not part of a job's identity."""
    first, again = submit(session), submit(session, changed(**changes), "called")

    assert again.id == first.id
    assert again.name == "called"


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"models": (MINE,)},
        {"require_ms": {"mine": 2.0}},
        {"allocator": "round-robin"},
        {"cost_model": "random"},
        {"repeat": 5},
        {"models": (replace(MINE, random_weights=None), MLP)},
        {"models": (replace(MINE, inputs={}), MLP)},
        {"models": (replace(MINE, target="cuda"), MLP)},
        {"models": (replace(MINE, buckets=BUCKETS), MLP)},
        {"models": (replace(MINE, masks={"mask": 0.0}), MLP)},
    ],
)
def test_changes_of_the_measurement_make_another_job(
    session: Session, changes: dict[str, Any]
) -> None:
    """A job is identified by what it measures and how."""
    assert submit(session, changed(**changes)).id != submit(session).id


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
def test_other_references_are_refused(session: Session, reference: str) -> None:
    """References of a request and of a stored row are checked alike."""
    with pytest.raises(RequestError, match="neither an uploaded"):
        submit(session, TuneRequest((ModelRequest(reference),)))
    with pytest.raises(RequestError, match="neither an uploaded"):
        resolve(reference, Path("/data"))


@pytest.mark.parametrize(("sha256", "suffix"), [("../a", ".onnx"), (SHA256, ".pt2")])
def test_an_upload_is_named_by_its_content_only(sha256: str, suffix: str) -> None:
    """A reference needs the hash of the content."""
    with pytest.raises(RequestError, match="does not name an uploaded"):
        upload_reference(sha256, suffix)
    assert upload_reference(SHA256) == UPLOAD


@pytest.mark.parametrize(
    ("model", "name", "field", "message"),
    [
        (ModelRequest("zoo:mlp", name="a\0b"), "", "model", "printable"),
        (ModelRequest("zoo:mlp", name="x" * 201), "", "model", "at most 200 characters"),
        (MLP, "a\x1b[31mb", "name", "printable"),
        (MLP, "x" * 201, "name", "at most 200 characters"),
        (ModelRequest("zoo:mlp", "llvm\0"), "", "target", "printable"),
        (ModelRequest("zoo:mlp", inputs={"a\n": (1,)}), "", "input", "printable"),
        (ModelRequest(UPLOAD, buckets={"a\n": ()}), "", "bucket", "printable"),
        (ModelRequest(UPLOAD, masks={"a\n": 0.0}), "", "mask", "printable"),
        (ModelRequest("zoo:mlp", random_weights=-1), "", "random_weights", "at least 0"),
        (ModelRequest("zoo:mlp\n"), "", "zoo", "neither"),
    ],
)
def test_a_wrong_request_is_not_stored(
    session: Session, model: ModelRequest, name: str, field: str, message: str
) -> None:
    """The error names the field."""
    with pytest.raises(RequestError, match=message) as caught:
        submit(session, TuneRequest((model,)), name)

    assert caught.value.field == field
    assert jobs.count_by_state(session) == {}


def test_a_job_keeps_its_priority_unless_one_is_given(session: Session) -> None:
    """A new job has priority 0, which can also be set again."""
    assert submit(session, changed(priority=None)).priority == 0
    assert submit(session, changed(priority=3)).priority == 3
    assert submit(session, changed(priority=None)).priority == 3
    assert submit(session, changed(priority=0)).priority == 0


def test_limits_grow_and_restart_a_finished_job(session: Session) -> None:
    """A request with the same or smaller limits changes nothing."""
    job = submit(session)
    jobs.set_state(session, job.id, "done")

    assert submit(session, changed(trials=50)).state == "done"
    assert submit(session, changed(trials=None)).state == "done"
    more = submit(session, changed(trials=200))
    assert (more.state, more.budget_trials) == ("queued", 200)


def test_a_job_that_was_only_split_into_tasks_can_be_tuned_by_default(workshop: Workshop) -> None:
    """The job gets the default budget once it is requested without a limit."""
    request = TuneRequest((MLP,), TuneSpec(trials=0))
    prepared = workshop.prepare()
    with workshop.sessions.begin() as session:
        job = submit(session, request)
        submissions.assign(session, job.id, prepared.network_id, prepared.target_id, {})
        jobs.set_state(session, job.id, "done")

    with workshop.sessions.begin() as session:
        again = submit(session, TuneRequest((MLP,)))

    assert (again.id, again.state, again.budget_trials) == (job.id, "queued", 64 * 4)


@pytest.mark.parametrize(("field", "value"), [("number", 2), ("cache_flush", False)])
def test_settings_that_do_not_compare_are_refused(
    session: Session, field: str, value: object
) -> None:
    """One job would otherwise decide how all later jobs of its target are timed."""
    with pytest.raises(RequestError, match="database of its own") as refused:
        submit(session, changed(**{field: value}))

    assert refused.value.field == field
    assert list(session.scalars(select(Job))) == []

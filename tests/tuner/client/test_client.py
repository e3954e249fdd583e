"""The client with a real service: an API process, a worker and a database."""

import gzip
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.engines import toy
from tests.services import Service, free_port
from tests.tuner.client.tokens import make_token
from tests.tuner.networks.models import relu_model
from tuner.client import ConnectError, NotFoundError, RequestRejected, TunerClient
from tuner.errors import ModelError, RequestError
from tuner.library import manifest
from tuner.reporting.job_report import JobReport
from tuner.schemas import JobSummary


def test_a_job_is_submitted_and_waited_for(client: TunerClient, done: JobSummary) -> None:
    """The table, the picks and the history of the job agree on the trials."""
    view = client.table(done.id)
    picks = list(client.picks(done.id))
    history = client.history(done.id)

    assert (done.state, done.trials) == ("done", 40)
    assert len(view.tasks) == toy.N_TASKS
    assert sum(task.trials for task in view.tasks) == 40
    assert sum(pick.n_measured for pick in picks) == 40
    assert [pick.sequence for pick in picks] == list(range(len(picks), 0, -1))
    assert history.points[-1].trials == 40
    assert client.report(done.id) == JobReport(view, history)
    assert view.split is not None
    assert view.split.device["name"] == "toy"


def test_an_equal_request_returns_the_earlier_job(client: TunerClient, done: JobSummary) -> None:
    """An equal request measures nothing again."""
    again = client.tune("zoo:mlp", trials=40)

    assert (again.created, again.job.id, again.job.state) == (False, done.id, "done")
    assert again.links.tasks == f"/api/v1/jobs/{done.id}/tasks"


def test_a_file_is_sent_as_it_is_read(client: TunerClient, tmp_path: Path) -> None:
    """The reported progress ends at the size of the file, and shapes are sent."""
    path = tmp_path / "net.onnx"
    path.write_bytes(relu_model("batch", 4).SerializeToString())
    seen: list[tuple[int, int]] = []

    submitted = client.tune(
        path, trials=0, inputs={"data": (2, 4)}, sent=lambda n, n_all: seen.append((n, n_all))
    )

    size = path.stat().st_size
    assert seen[-1] == (size, size)
    assert client.wait(submitted.job.id).state == "done"
    assert client.table(submitted.job.id).job.network == "net"


def test_events_are_complete_and_in_order(client: TunerClient, done: JobSummary) -> None:
    """Sequence numbers have no gaps, and a stream can start after any of them."""
    events = list(itertools.islice(client.events(done.id), done.n_events))
    later = list(itertools.islice(client.events(done.id, after=10), done.n_events - 10))

    assert [event.sequence for event in events] == list(range(1, done.n_events + 1))
    assert later == events[10:]
    assert sum(event.kind == "trial" for event in events) == 40
    assert events[-1].data == {"state": "done", "message": None}


def test_jobs_are_listed_over_pages(
    client: TunerClient, done: JobSummary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter holds on every page."""
    for seed in range(3):
        client.tune("zoo:mlp", trials=0, seed=seed, name=f"paged {seed}")
    monkeypatch.setattr("tuner.client.client._PAGE_SIZE", 2)

    listed = [job.id for job in client.jobs(sort="created")]

    assert listed == sorted(listed)
    assert done.id in listed
    assert [job.name for job in client.jobs(text="PAGED", sort="-name")][:2] == [
        "paged 2",
        "paged 1",
    ]


def test_a_job_is_controlled(client: TunerClient) -> None:
    """A job is paused, resumed, extended, prioritised, cancelled and deleted."""
    job = client.tune("zoo:mlp", trials=4000, seed=99).job.id
    next(event for event in client.events(job) if event.kind == "trial")

    assert client.pause(job).state == "paused"
    assert client.set_priority(job, 3).priority == 3
    assert client.raise_budget(job, trials=5000).budget_trials == 5000
    assert client.resume(job).state in ("queued", "running")
    assert client.cancel(job).state == "cancelled"
    assert client.wait(job).state == "cancelled"
    client.delete(job)
    with pytest.raises(NotFoundError, match=f"no job {job}"):
        client.job(job)


def test_a_library_is_built_and_downloaded(
    client: TunerClient, done: JobSummary, tmp_path: Path
) -> None:
    """The library is verified and replaces the folder, and progress ends at its size."""
    out = tmp_path / "out"
    seen: list[tuple[int, int]] = []
    build = client.wait_for_build(client.build(done.id))

    described = client.download_library(
        done.id, out, received=lambda n, n_all: seen.append((n, n_all))
    )
    again = client.download_library(done.id, out)

    manifest.verify(out, described)
    assert described == again
    assert [entry.name for entry in described.subgraphs if entry.record is None] == []
    assert seen[-1] == (build.n_bytes, build.n_bytes)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_exported_records_can_be_imported(client: TunerClient, done: JobSummary) -> None:
    """An import of the own export adds no record."""
    lines = list(client.export_records())
    best = client.best_records(job=done.id)

    report = client.import_records(line.encode() for line in lines)

    assert (report.added, report.torn) == (0, 0)
    assert report.known == sum('"kind":"record"' in line for line in lines) >= 40
    assert len(best) == toy.N_TASKS
    assert client.best_records(workload=best[0].workload)[0] == best[0]
    failed = list(client.list_records(failed=True))
    assert all(record.error_kind for record in failed)


@pytest.mark.usefixtures("done")
def test_a_file_of_records_can_be_imported(client: TunerClient, tmp_path: Path) -> None:
    """A log on disk, and an archive of it that is unpacked as it is sent."""
    content = "".join(client.export_records()).encode()
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))

    with (tmp_path / "a.jsonl").open("rb") as plain, gzip.open(tmp_path / "a.gz") as archive:
        reports = [client.import_records(log) for log in (plain, archive)]

    assert {(report.added, report.torn) for report in reports} == {(0, 0)}
    assert reports[0].known == reports[1].known >= 40


def test_the_catalogue_is_listed(client: TunerClient, done: JobSummary) -> None:
    """Networks with tasks, targets, workers, libraries, failures and curves are listed."""
    network = next(network for network in client.networks() if network.id == done.network_id)
    (target,) = list(client.targets())
    (worker,) = [worker for worker in client.workers() if worker.role == "active"]

    tasks = client.network_tasks(network.id, target.id)

    assert [task.weight for task in tasks] == [3, 1, 2, 1]
    assert worker.alive
    trials = itertools.islice(client.events(done.id), done.n_events)
    n_failed = sum(event.data.get("error_kind") is not None for event in trials)
    assert sum(failure.trials for failure in client.failures(done.id)) == n_failed > 0
    assert client.recording(done.id).startswith(b"\x1f\x8b")
    assert all(library.key for library in client.libraries())
    assert [entry.action for entry in client.audit() if entry.job_id == done.id][-1] == "tune"


def test_health_is_reported(client: TunerClient) -> None:
    """The service is ready, has a version, and a clock near the local one."""
    health = client.health()

    assert health.ready
    assert health.version
    assert health.skew_secs is not None
    assert abs(health.skew_secs) < 2


def test_missing_rows_are_not_found(client: TunerClient, done: JobSummary) -> None:
    """The error has exit status 2, with the detail and the advice of the service."""
    with pytest.raises(NotFoundError, match="no job 77777") as missing:
        client.table(77777)
    with pytest.raises(RequestRejected, match=f"job {done.id} is done") as state:
        client.cancel(done.id)
    with pytest.raises(RequestRejected, match=r"^objective: 'beauty' is unknown") as wrong:
        client.tune("zoo:mlp", objective="beauty")

    assert (missing.value.status, missing.value.exit_code) == (404, 2)
    assert (state.value.status, state.value.kind) == (409, "wrong-state")
    assert (wrong.value.field, state.value.field) == ("objective", None)


def test_a_library_needs_a_build(client: TunerClient, tmp_path: Path) -> None:
    """The advice names the build, and the folder is not created."""
    job = client.wait(client.tune("zoo:mlp?seed=5", trials=0).job.id).id

    with pytest.raises(RequestRejected, match="no finished build"):
        client.download_library(job, tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_a_network_that_cannot_be_loaded_fails_its_job(client: TunerClient, tmp_path: Path) -> None:
    """The message of the job has the reason."""
    (tmp_path / "net.onnx").write_bytes(b"not a model at all, but not empty either")

    job = client.wait(client.tune(tmp_path / "net.onnx").job.id)

    assert job.state == "failed"
    assert job.message


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("net.pt2", b"PK", "is a pickle"),
        ("net.onnx", b"", "is empty"),
        ("net.txt", b"x", "extension"),
        ("missing.onnx", None, "no such file"),
    ],
)
def test_a_bad_file_is_not_sent(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    """A bad file is rejected without a connection."""
    if content is not None:
        (tmp_path / name).write_bytes(content)

    url = f"http://127.0.0.1:{free_port()}"
    with TunerClient(url) as client, pytest.raises(ModelError, match=words):
        client.tune(tmp_path / name)


def test_an_unreachable_service_is_one_line() -> None:
    """The error names the URL and has exit status 1."""
    url = f"http://127.0.0.1:{free_port()}"

    with TunerClient(url) as client, pytest.raises(ConnectError, match=url) as refused:
        client.job(1)

    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 1


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://host", "http://", "http://user:pw@host", "http://[::"]
)
def test_an_invalid_url_is_rejected(url: str) -> None:
    """An invalid URL is rejected before any request, and its password is not shown."""
    with pytest.raises(RequestError) as refused:
        TunerClient(url)

    assert ":pw" not in str(refused.value)


def test_a_missing_token_is_explained(tmp_path: Path) -> None:
    """A missing, wrong or insufficient token is explained, and never shown."""
    service = Service(tmp_path)
    try:
        service.start_api("--require-tokens")
        reader = make_token(service.here.url, "read")
        with (
            TunerClient(service.url) as anonymous,
            pytest.raises(RequestRejected, match=r"^token: "),
        ):
            anonymous.job(1)
        with (
            TunerClient(service.url, "tuner_wrong") as wrong,
            pytest.raises(RequestRejected) as refused,
        ):
            wrong.job(1)
        with TunerClient(service.url, reader) as client:
            assert list(client.jobs()) == []
            with pytest.raises(RequestRejected, match="submit") as forbidden:
                client.tune("zoo:mlp")
    finally:
        service.stop("api")

    assert "tuner_wrong" not in str(refused.value) + repr(refused.value)
    assert reader not in str(forbidden.value)


def test_importing_the_client_is_cheap() -> None:
    """The client imports neither TVM nor a database."""
    program = (
        "import sys, tuner.client; "
        "print([m for m in ('tvm', 'xgboost', 'onnx', 'sqlalchemy', 'numpy') if m in sys.modules])"
    )
    command = [sys.executable, "-c", program]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"

"""Jobs and builds of one worker."""

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from records import jobs, networks, targets
from records.models import JobState, MeasureRecord
from records.service import builds
from records.service.service_models import Worker
from tests.engines import toy
from tests.service.rig import Rig, rig
from tests.waiting import wait_for
from tuner.client.downloads import unpack
from tuner.devices.locks import cores_lock, device_lock
from tuner.jobs.submission import upload_path
from tuner.library import manifest as manifests
from tuner.service.builds.archives import archives_of

_MEMORY_MB = "400"


@pytest.fixture(scope="module")
def at_work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A worker that serves the jobs of all tests of this file."""
    folder = tmp_path_factory.mktemp("service")
    with rig(f"sqlite:///{folder / 'tuner.db'}", folder, run_secs=0.02) as opened:
        opened.start("data", "--load-memory-mb", _MEMORY_MB)
        yield opened


def set_state(at_work: Rig, job_id: int, state: JobState) -> None:
    """Request a state, as the API does."""
    with at_work.sessions.begin() as session:
        jobs.set_state(session, job_id, state)


def ended(at_work: Rig, job_id: int, secs: float = 40.0) -> str:
    """Wait until a job has ended, and return its state."""
    wait_for(lambda: at_work.state(job_id) in ("done", "failed"), secs)
    return at_work.state(job_id)


def test_a_bad_model_fails_its_job_alone(at_work: Rig) -> None:
    """Its job says what is wrong; another job is tuned, and each of its trials counts once."""
    bad, good = at_work.submit("zoo:nope"), at_work.submit("zoo:mlp", 12)

    assert (ended(at_work, bad), ended(at_work, good)) == ("failed", "done")
    assert "no zoo network 'nope'" in (at_work.job(bad).message or "")
    assert at_work.job(good).reached_trials == 12
    at_work.check_counts(good)


def test_a_job_of_no_trials_splits_its_network_into_tasks(at_work: Rig) -> None:
    """Nothing is measured, and the tasks are stored."""
    before = at_work.n_trials()

    job = at_work.submit("zoo:mlp?batch=3", 0)

    assert ended(at_work, job) == "done"
    assert at_work.job(job).network_id is not None
    assert at_work.n_trials() == before


def test_a_job_without_limits_gets_a_number_of_trials_per_task(at_work: Rig) -> None:
    """The row of the job shows that limit."""
    job = at_work.submit("zoo:mlp?batch=4", None)

    wait_for(lambda: at_work.job(job).budget_trials == 64 * 4)
    set_state(at_work, job, "cancelled")


def test_an_upload_that_is_not_a_model_fails_in_plain_words(at_work: Rig) -> None:
    """The message names the model as its owner does, without a path of this machine."""
    sha256 = hashlib.sha256(b"hello").hexdigest()
    path = upload_path(at_work.folder / "data", sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"hello")

    job = at_work.submit(f"upload:{sha256}.onnx")

    assert ended(at_work, job) == "failed"
    assert "is a text file, not a model" in (at_work.job(job).message or "")
    assert str(at_work.folder) not in (at_work.job(job).message or "")


def test_a_model_that_takes_too_much_memory_fails(at_work: Rig) -> None:
    """Its process ends or gives up, and the worker continues."""
    job = at_work.submit("zoo:resnet-50")

    assert ended(at_work, job) == "failed"
    message = at_work.job(job).message or ""
    assert "needs more than the 0.391 GiB" in message or "may take 0.391 GiB" in message
    assert ended(at_work, at_work.submit("zoo:mlp?batch=5", 0)) == "done"


def test_a_job_cancelled_in_the_queue_is_not_loaded(at_work: Rig) -> None:
    """A cancelled job never has a network."""
    first = at_work.submit("zoo:mlp?batch=10", 0)
    job = at_work.submit("zoo:mlp?batch=11", 0)
    set_state(at_work, job, "cancelled")
    ended(at_work, first)
    ended(at_work, at_work.submit("zoo:mlp?batch=12", 0))

    assert (at_work.state(job), at_work.job(job).network_id) == ("cancelled", None)


def test_a_library_is_built_into_the_same_archive_each_time(at_work: Rig) -> None:
    """The stored hash is that of the archive, which has the files of the manifest."""
    job = at_work.submit("zoo:mlp", 12)
    ended(at_work, job)
    first = at_work.build(job)
    path = archives_of(at_work.folder / "data") / str(first.archive)
    content = path.read_bytes()
    path.unlink()

    again = at_work.build(job)

    assert path.read_bytes() == content
    assert (again.sha256, again.n_bytes) == (first.sha256, first.n_bytes)
    assert first.sha256 == hashlib.sha256(content).hexdigest()
    out = at_work.folder / "extracted"
    out.mkdir()
    with path.open("rb") as archive:
        unpack(archive, out)
    described = manifests.read(out)
    manifests.verify(out, described)
    assert set(described.files) == {"lib.so"}
    assert sum(entry.record is not None for entry in described.subgraphs) >= 1


def test_builds_that_fail_say_why(at_work: Rig) -> None:
    """A strict build without records fails, and a build of a job of the command line."""
    unmeasured = at_work.submit("zoo:mlp?batch=13", 0)
    ended(at_work, unmeasured)
    with at_work.sessions.begin() as session:
        network_id = networks.ensure_network(session, "ab", "here", {}).id
        target_id = targets.ensure_target(session, "{}", {}).id
        key = jobs.NewJob(
            network_id=network_id, target_id=target_id, objective="weighted_sum", seed=0
        )
        of_command_line = jobs.open_job(session, key).id

    strict = at_work.build(unmeasured, strict=True)
    other = at_work.build(of_command_line)

    assert "subgraphs have no record for this target" in (strict.message or "")
    assert "build it with tuner build" in (other.message or "")


def test_logs_name_the_job_the_pick_and_the_record(at_work: Rig) -> None:
    """Each trial has a line."""
    ended(at_work, at_work.submit("zoo:mlp", 12))

    trials = [line for line in at_work.logs() if line["message"] == "trial"]

    assert {"job", "pick", "record"} <= set(trials[0])
    assert {line["record"] for line in trials} >= {1, 2, 3}
    assert all(("latency_secs" in line) != ("error" in line) for line in trials)


def test_a_worker_reports_its_activity(at_work: Rig) -> None:
    """The report is a row of the database."""
    at_work.submit("zoo:mlp?batch=9", 4)

    (worker,) = wait_for(lambda: [each for each in at_work.workers() if each.busy_share > 0.0])

    assert (worker.role, worker.device) == ("active", {"name": "toy", "sandbox": "confined"})
    assert worker.busy_share <= 1.0


@pytest.mark.slow("starts the worker twice, 24 s")
def test_a_job_continues_after_a_restart(tmp_path: Path) -> None:
    """SIGTERM returns it to the queue within seconds; a paused job stays paused."""
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path, run_secs=0.05) as opened:
        job, paused = opened.submit(trials=60), opened.submit("zoo:mlp?batch=2")
        set_state(opened, paused, "paused")
        first = opened.start()
        wait_for(lambda: opened.n_trials() >= 4)

        first.send_signal(signal.SIGTERM)

        assert first.wait(30.0) == 128 + signal.SIGTERM
        assert (opened.state(job), opened.state(paused)) == ("queued", "paused")
        assert opened.workers()[0].activity == "stopped"
        assert 4 <= opened.n_trials() < 60

        opened.start()
        assert ended(opened, job) == "done"
        assert len(opened.all(MeasureRecord.id)) == 60
        assert opened.state(paused) == "paused"
        opened.check_counts(job)


@pytest.mark.slow("waits for a time-out")
def test_a_model_that_takes_too_long_to_load_fails(tmp_path: Path) -> None:
    """Its process ends after the time-out, and the next job is served."""
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path) as opened:
        opened.start("data", "--load-timeout", "5", TOY_SPLIT_SECS="600")
        slow = opened.submit(f"zoo:mlp?batch={toy.SLOW_BATCH}", 0)
        assert ended(opened, slow) == "failed"
        assert "splitting the network into tasks took longer than 5 s" in (
            opened.job(slow).message or ""
        )

        assert ended(opened, opened.submit("zoo:mlp", 0)) == "done"


@pytest.mark.slow("starts a worker for 10 s")
def test_an_idle_worker_lets_others_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new job or build waits for them, and the worker says for which process."""
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path) as opened:
        monkeypatch.setenv("TUNER_RUNTIME_DIR", opened.environ()["TUNER_RUNTIME_DIR"])
        opened.start()
        first = opened.submit(trials=0)
        assert ended(opened, first) == "done"

        def activity() -> str:
            with opened.sessions() as session:
                return session.scalars(select(Worker.activity)).one()

        wait_for(lambda: activity() == "waiting for jobs")
        with device_lock(tmp_path / "data"), cores_lock():
            job = opened.submit("zoo:mlp?batch=2", trials=0)
            wait_for(lambda: f"process {os.getpid()} is measuring" in activity())
            assert opened.state(job) == "queued"
        assert ended(opened, job) == "done"

        wait_for(lambda: activity() == "waiting for jobs")
        with device_lock(tmp_path / "data"), cores_lock():
            with opened.sessions.begin() as session:
                build = builds.request_build(session, first).id
            wait_for(lambda: f"process {os.getpid()} is measuring" in activity())
            with opened.sessions() as session:
                assert builds.get_build(session, build).state == "queued"
        assert opened.build(first).state == "done"


@pytest.mark.slow("starts workers for 10 s")
def test_a_worker_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process measures on its machine, it reports that and claims no job."""
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path) as opened:
        job = opened.submit(trials=0)
        monkeypatch.setenv("TUNER_RUNTIME_DIR", opened.environ()["TUNER_RUNTIME_DIR"])
        with device_lock(tmp_path / "data"):
            opened.start()
            wait_for(lambda: any("is measuring" in line["message"] for line in opened.logs()))
            assert opened.state(job) == "queued"

        assert ended(opened, job) == "done"

"""Commands with ``--server``: the user has a URL, and the service everything else."""

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli import Answer
from tests.engines import toy
from tests.services import Service, free_port, running
from tests.tuner.cli.commands.conftest import Shell
from tests.tuner.client.tokens import make_token
from tests.tuner.networks.models import relu_model
from tuner.client import TunerClient
from tuner.library import manifest

TRIALS = 40


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose candidates are slow enough to be watched."""
    with running(tmp_path_factory.mktemp("service"), TOY_RUN_SECS="0.02") as service:
        yield service


class RemoteUser:
    """A user whose commands name a service, and who has no database."""

    def __init__(self, shell: Shell, url: str) -> None:
        self.shell, self.url, self.folder = shell, url, shell.folder

    def __call__(self, *args: str, stdin: str = "", **environ: str) -> Answer:
        """Run a command to its end."""
        return self.shell("--server", self.url, *args, stdin=stdin, **environ)

    def start(self, *args: str, **environ: str) -> "subprocess.Popen[str]":
        """Start a command as a process."""
        return subprocess.Popen(
            self.shell.command("--server", self.url, *args),
            env=self.shell.environ(**environ),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def away(service: Service, tmp_path: Path) -> RemoteUser:
    """A user on another machine."""
    return RemoteUser(Shell(tmp_path), service.url)


@pytest.fixture(scope="module")
def tuned(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """The output of a command that tuned a network."""
    user = RemoteUser(Shell(tmp_path_factory.mktemp("tuned")), service.url)
    answer = user("tune", "zoo:mlp", "--trials", str(TRIALS), "--json")
    assert answer.status == 0, answer.err
    return answer


@pytest.mark.slow("tunes in the service and locally")
def test_tune_prints_the_same_as_locally(away: RemoteUser, tuned: Answer) -> None:
    """It prints one object on stdout and progress on stderr; a repetition measures nothing."""
    again = away("tune", "zoo:mlp", "--trials", str(TRIALS))

    assert tuned.json["trials"] == tuned.json["measured_now"] == TRIALS
    assert (tuned.json["error"], tuned.json["network"]) == (None, "mlp")
    assert 0 < tuned.json["first_trial_secs"] < tuned.json["secs"]
    assert len(tuned.json["tasks"]) == toy.N_TASKS
    assert "trials 0/40" in tuned.err
    assert " trials on these tasks, 0 of them now" in again.out


@pytest.mark.slow("tunes two models in the service")
def test_models_are_uploaded_and_tuned_separately(away: RemoteUser) -> None:
    """Two files become two jobs, whose dynamic dimensions need a shape."""
    for name, width in (("one", 4), ("two", 5)):
        path = away.folder / f"{name}.onnx"
        path.write_bytes(relu_model("batch", width).SerializeToString())
    two = ("one.onnx", "two.onnx", "--trials", "4", "--separate", "--json")

    shapeless = away("tune", *two)
    one = away("tune", "one.onnx", "--input", "data=2,4", "--trials", "4", "--separate", "--json")

    assert shapeless.status == 1
    assert ["data=" in job["error"] for job in shapeless.json["jobs"]] == [True, True]
    assert [job["network"] for job in one.json["jobs"]] == ["one"]


@pytest.mark.slow("tunes two programs in the service")
def test_sets_of_shapes_become_networks_of_one_job(away: RemoteUser) -> None:
    """As locally: the model is sent once, and every set is a network."""
    (away.folder / "net.onnx").write_bytes(relu_model("batch", 4).SerializeToString())

    answer = away("tune", "net.onnx", "-i", "data=2,4", "-i", "data=3,4", "--trials", "4", "--json")

    assert answer.status == 0, answer.err
    assert answer.json["network"] == "net@2x4 + net@3x4"


@pytest.mark.slow("loads a network in the service for 10 s")
def test_a_network_that_cannot_be_tuned_is_one_line(away: RemoteUser) -> None:
    """The command prints the error of the worker, and exits with status 1."""
    (away.folder / "bad.onnx").write_bytes(os.urandom(999))

    answer = away("tune", "bad.onnx", "--trials", "4")

    assert (answer.status, answer.out) == (1, "")
    assert "failed" in answer.err.splitlines()[-1]
    assert "Traceback" not in answer.err


def test_ctrl_c_leaves_the_job_running(away: RemoteUser) -> None:
    """The message contains the command that cancels the job."""
    process = away.start("tune", "zoo:mlp", "--trials", "3000", "--seed", "7")
    assert process.stderr is not None
    job = process.stderr.readline().split()[1]
    process.stderr.readline()

    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=20)

    assert process.returncode == 130
    assert f"jobs cancel {job}" in message
    assert away("jobs", "cancel", job, "--json").json["state"] == "cancelled"


@pytest.mark.slow("follows a table for 10 s")
def test_the_table_is_live_in_a_terminal(away: RemoteUser, tuned: Answer) -> None:
    """The table is redrawn as trials arrive, and stays at the end."""
    spent = away("table", str(tuned.json["job"]), "--json").json["spent_trials"]
    ours, theirs = pty.openpty()
    environ = away.shell.environ(TERM="xterm", COLUMNS="120", LINES="40")
    command = away.shell.command(
        "--server", away.url, "tune", "zoo:mlp", "--trials", str(spent + 240)
    )
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environ)
    os.close(theirs)
    seen = ""
    with process, os.fdopen(ours, "rb", buffering=0) as screen:
        deadline = time.monotonic() + 60
        while process.poll() is None:
            assert time.monotonic() < deadline, seen
            try:
                seen += screen.read(65536).decode(errors="replace")
            except OSError:
                break

    assert process.returncode == 0, seen
    assert seen.count("Task scheduler") >= 3
    assert "now task" in seen


def test_tasks_are_listed(away: RemoteUser, tuned: Answer) -> None:
    """The list measures nothing, and does not change the job that has the tasks."""
    listed = away("tasks", "zoo:mlp", "--json").json
    shown = away("tasks", "zoo:mlp").out

    assert [task["weight"] for task in listed["tasks"]] == [3, 1, 2, 1]
    assert listed["kernel_calls"] == 7
    assert listed["notes"] == ["a toy network"]
    assert "4 tasks, 7 kernel calls" in shown
    state = away("table", str(tuned.json["job"]), "--json").json
    assert state["state"] == "done"
    assert state["budget_trials"] >= TRIALS


def test_a_library_is_built_by_the_service_and_stored_locally(
    away: RemoteUser, tuned: Answer
) -> None:
    """The library uses the best records, and a second build takes it from the cache."""
    latency = away("table", str(tuned.json["job"]), "--json").json["total_latency_secs"]
    built = away("build", "zoo:mlp", "-o", "out", "--json")
    again = away("build", "zoo:mlp", "-o", "out")

    assert built.status == 0, built.err
    assert (built.json["tuned"], built.json["fallbacks"]) == (toy.N_TASKS, 0)
    assert built.json["estimated_secs"] == pytest.approx(latency)
    manifest.verify(away.folder / "out", manifest.read(away.folder / "out"))
    assert "Cached out" in again.out
    benched = away("bench", "out", "--turns", "1", "--json", TUNER_ENGINE=toy.NAME)
    assert benched.status == 0, benched.err
    assert "on this machine" in benched.err


def test_a_strict_build_without_records_is_refused(away: RemoteUser) -> None:
    """The command prints one line and makes no folder."""
    answer = away("build", "zoo:mlp?batch=9", "-o", "out", "--strict")

    assert (answer.status, answer.out) == (1, "")
    assert "no record" in answer.err
    assert not (away.folder / "out").exists()


def test_a_folder_that_is_not_a_library_is_not_replaced(away: RemoteUser) -> None:
    """The command refuses it before it sends a request."""
    (away.folder / "out").mkdir()
    (away.folder / "out" / "mine").touch()

    answer = away("build", "zoo:mlp", "-o", "out")

    assert answer.status == 2
    assert "is not a tuner library" in answer.err


def test_the_table_of_a_job(away: RemoteUser, tuned: Answer) -> None:
    """The table is that of the service, with its picks and their reasons."""
    job = str(tuned.json["job"])
    shown = away("table", job, "--picks", "3").out
    explained = away("table", job, "--why", "--picks", "99").out
    watched = away("table", job, "--watch")
    as_json = away("table", job, "--picks", "2", "--json").json

    assert "Last picks of" in shown
    assert "every task gets a first round" in explained
    assert (watched.status, watched.out.count("Task scheduler")) == (0, 1)
    assert as_json["total_latency_secs"] <= tuned.json["total_latency_secs"]
    assert len(as_json["picks"]) == 2
    assert as_json["device"] == {"name": "toy"}
    assert away("table").status == 0
    unknown = away("table", "777")
    assert (unknown.status, "no job 777; known jobs: " in unknown.err) == (2, True)


def test_jobs_are_paused_extended_resumed_cancelled_and_deleted(
    away: RemoteUser, service: Service
) -> None:
    """Each command changes the job as it says."""
    with TunerClient(service.url) as client:
        number = client.tune("zoo:mlp", trials=3000, seed=11).job.id
        next(event for event in client.events(number) if event.kind == "trial")
    job = str(number)

    assert away("jobs", "rm", job).status == 2
    assert away("jobs", "pause", job, "--json").json["state"] == "paused"
    assert away("jobs", "budget", job, "--trials", "4000", "--json").json["budget_trials"] == 4000
    assert away("jobs", "priority", job, "2", "--json").json["priority"] == 2
    assert away("jobs", "resume", job, "--json").json["state"] in ("queued", "running")
    assert away("jobs", "cancel", job, "--json").json["state"] == "cancelled"
    assert number in [row["job"] for row in away("jobs", "ls", "--json").json["jobs"]]
    assert away("jobs", "rm", job, "--json").json == {"job": number, "deleted": True}
    assert number not in [row["job"] for row in away("jobs", "ls", "--json").json["jobs"]]
    assert f"no job {job}; known jobs" in away("jobs", "pause", job).err


def test_records_are_listed_exported_and_imported(away: RemoteUser, tuned: Answer) -> None:
    """An export can be imported into the service again, and into a local database."""
    best = away("records", "best", "--job", str(tuned.json["job"]), "--json").json["records"]
    listed = away("records", "list", "--limit", "5", "--json").json["records"]
    exported = away("records", "export", "x.jsonl", "--json").json
    there = away("records", "import", "x.jsonl", "--json").json
    piped = away("records", "import", "-", stdin=(away.folder / "x.jsonl").read_text())
    here = away.shell("records", "import", "x.jsonl", "--trust", "--json").json

    assert {row["workload"] for row in best} == {row["workload"] for row in tuned.json["tasks"]}
    assert len(listed) == 5
    assert (there["added"], there["known"], there["torn"]) == (0, exported["records"], 0)
    assert "0 records added" in piped.out
    assert here["added"] == exported["records"]
    local = away.shell("records", "best", "--json").json["records"]
    assert {row["workload"] for row in best} <= {row["workload"] for row in local}
    assert best[0].keys() == local[0].keys()


def test_a_damaged_log_is_refused(away: RemoteUser) -> None:
    """The command names the damaged line."""
    (away.folder / "bad.jsonl").write_text("hello\n")

    answer = away("records", "import", "bad.jsonl")

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("tuner: cannot import bad.jsonl: line 1: not a log")


def test_a_job_is_replayed(away: RemoteUser, tuned: Answer) -> None:
    """The curves of the job are downloaded."""
    replays = away("replay", str(tuned.json["job"]), "--json").json["replays"]

    assert len(replays) == 3
    assert all(replay["trials"] >= TRIALS for replay in replays)


def test_the_doctor_checks_the_service(away: RemoteUser, tuned: Answer) -> None:
    """It checks version, database, clock, access and workers."""
    assert tuned.status == 0
    checks = {check["name"]: check for check in away("doctor", "--json").json["checks"]}

    assert list(checks) == ["service", "database", "clock", "access", "workers"]
    assert {check["state"] for check in checks.values()} == {"ok"}
    assert checks["access"]["details"] == {"scopes": ["read", "submit", "admin"]}


def test_a_service_that_cannot_be_reached_is_reported_in_one_line(tmp_path: Path) -> None:
    """Every command names the URL, and the doctor says how to start a service."""
    user = RemoteUser(Shell(tmp_path), f"http://127.0.0.1:{free_port()}")

    for arguments in (("jobs", "ls"), ("tune", "zoo:mlp"), ("doctor",)):
        answer = user(*arguments)
        assert answer.status == 1, answer
        assert user.url in answer.err + answer.out
        assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("table", "--database", "sqlite:///x.db"), "--database applies to this machine"),
        (("records", "best", "--data-dir", "x"), "--data-dir applies to this machine"),
        (("tune", "zoo:mlp", "--database", "sqlite:///x.db"), "--database applies to this machine"),
        (("doctor", "--data-dir", "x"), "--data-dir applies to this machine"),
        (("tune", "net.pt2"), "pickle"),
        (("tune", "missing.onnx"), "no such file"),
        (("tune", "zoo:mlp", "--objective", "beauty"), "--objective: 'beauty' is unknown"),
        (("build", "zoo:resnet-81", "-o", "out"), "resnet-81"),
        (("serve",), "works on this machine"),
        (("worker",), "works on this machine"),
    ],
)
def test_options_and_commands_without_a_remote_meaning_are_refused(
    away: RemoteUser, arguments: tuple[str, ...], words: str
) -> None:
    """The command prints one line with the reason."""
    (away.folder / "net.pt2").write_bytes(b"PK")

    answer = away(*arguments)

    assert answer.status in (1, 2)
    assert answer.out == ""
    assert words in answer.err.splitlines()[-1]
    assert "Traceback" not in answer.err


@pytest.mark.slow("starts a service for 10 s")
def test_the_environment_names_a_service_and_its_token(tmp_path: Path) -> None:
    """TUNER_SERVER and TUNER_TOKEN replace the options, and no output contains the token."""
    service = Service(tmp_path)
    user = Shell(tmp_path / "user")
    user.folder.mkdir()
    try:
        service.start_api("--require-tokens")
        token = make_token(service.here.url, "read")
        named = {"TUNER_SERVER": service.url}
        listed = user("jobs", "ls", "--json", **named, TUNER_TOKEN=token)
        anonymous = user("jobs", "ls", **named)
        reader = user("tune", "zoo:mlp", **named, TUNER_TOKEN=token)
        wrong = user("--token", "tuner_secret", "jobs", "ls", **named)
        doctor = user("doctor", "--json", **named, TUNER_TOKEN=token)
    finally:
        service.stop("api")

    assert listed.json == {"jobs": []}
    assert (anonymous.status, "tuner: --token: no token was sent" in anonymous.err) == (2, True)
    assert (reader.status, "submit" in reader.err) == (2, True)
    assert (wrong.status, "tuner_secret" in wrong.err) == (2, False)
    checks = {check["name"]: check for check in doctor.json["checks"]}
    assert checks["access"]["details"] == {"scopes": ["read"]}
    assert token not in json.dumps([vars(answer) for answer in (listed, anonymous, reader, doctor)])


def test_the_code_of_a_record_comes_from_the_server(away: RemoteUser, service: Service) -> None:
    """A worker of the server compiles the record; what it cannot print is an error."""
    assert away("tune", "zoo:mlp", "--trials", "8", "--seed", "5").status == 0
    record = away("records", "best", "--json").json["records"][0]["record"]
    shown = away("records", "show", str(record), "--schedule", "--source", "--json").json
    failed = away("records", "show", str(record), "--assembly")
    page = httpx.get(f"{service.url}/records/{record}").text

    assert shown["code"] == {part: f"{part} of {shown['trace']}" for part in ("schedule", "source")}
    assert (failed.status, "a toy has no assembly" in failed.err) == (1, True)
    assert 'id="code-source"' in page
    assert "a toy has no assembly" in page


def test_a_webhook_needs_a_service_that_sends_them(away: RemoteUser) -> None:
    """A command without a server, and one at a server without a secret, say so."""
    options = ("tune", "zoo:mlp", "--trials", "8", "--webhook", "https://ci.example")
    local, refused = away.shell(*options), away(*options)
    secret = away("jobs", "webhook-secret")

    assert (local.status, "--webhook needs a server" in local.err) == (2, True)
    assert (refused.status, "this service sends no webhooks" in refused.err) == (2, True)
    assert (secret.status, "this service sends no webhooks" in secret.err) == (2, True)

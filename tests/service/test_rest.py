"""From an upload to a verified library by REST: a server, a worker and a real database."""

import hashlib
import io
import json
import re
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.database_fixtures import empty_postgres
from tests.service.rig import Rig, rig
from tests.tuner.networks.models import relu_model
from tests.waiting import wait_for

AT = "/api/v1"
FORM = {"trials": "24", "trials_per_round": "4", "cost_model": "random", "input": "data=2,4"}


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.slow("30 s; routes run on both")),
    ],
)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    """A service on a database of each kind in turn, for all tests of this file."""
    folder = tmp_path_factory.mktemp("service")
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'tuner.db'}"
        if request.param == "postgresql":
            url = stack.enter_context(empty_postgres(request.getfixturevalue("postgres")))
        yield stack.enter_context(rig(url, folder, run_secs=0.01))


@pytest.fixture(scope="module")
def client(opened: Rig) -> Iterator[httpx.Client]:
    """A client of the service."""
    with httpx.Client(base_url=opened.serve(), timeout=30, trust_env=False, verify=False) as http:
        yield http


def watch(client: httpx.Client, job_id: int, after: int = 0) -> list[dict[str, Any]]:
    """Read the events of a job until it is done, for a minute and a half at most."""
    seen, deadline = [], time.monotonic() + 90
    with client.stream("GET", f"{AT}/jobs/{job_id}/events?after={after}") as answer:
        for line in answer.iter_lines():
            # A stream without events sends a line every 15 seconds.
            assert time.monotonic() < deadline, "the job does not end"
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["kind"] == "state" and seen[-1]["data"]["state"] in ("done", "failed"):
                    break
    return seen


def test_from_a_model_to_a_library(opened: Rig, client: httpx.Client) -> None:
    """A model is uploaded, tuned, built and downloaded; the same request again measures nothing."""
    model = relu_model("n", 4).SerializeToString()
    key = {"idempotency-key": "once"}
    files = {"model": ("tiny.onnx", model)}
    submitted = client.post(f"{AT}/tune", files=files, data=FORM, headers=key)
    assert submitted.status_code == 202, submitted.text
    job_id, links = submitted.json()["job"]["id"], submitted.json()["links"]

    events = watch(client, job_id)

    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["data"]["state"] == "done", events[-1]
    assert sum(event["kind"] == "trial" for event in events) == 24
    assert watch(client, job_id, after=len(events) - 1) == events[-1:]
    table = client.get(links["tasks"]).json()
    assert sum(task["trials"] for task in table["tasks"]) == 24
    assert table["job"]["total_latency_secs"] == pytest.approx(
        sum(task["weight"] * task["latency_secs"] for task in table["tasks"])
    )
    assert client.get(links["history"]).json()["points"][-1]["trials"] == 24
    opened.check_counts(job_id)

    archive = _library(client, links)
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened_archive:
        names = opened_archive.getnames()
    assert {Path(name).name for name in names} >= {"lib.so", "manifest.json"}
    assert len({Path(name).parent for name in names} - {Path()}) == 1

    n_before = opened.n_trials()
    again = client.post(f"{AT}/tune", files=files, data=FORM, headers=key)
    by_others = client.post(f"{AT}/tune", files=files, data=FORM)
    assert (again.status_code, by_others.status_code) == (200, 200)
    assert again.json()["job"]["id"] == by_others.json()["job"]["id"] == job_id
    assert opened.n_trials() == n_before
    _check_lists(client, client.get(links["self"]).json()["job"])


def test_a_file_that_is_not_a_model_fails_its_job_alone(client: httpx.Client) -> None:
    """The job says why it failed, and the service continues."""
    whole = relu_model(1, 4).SerializeToString()
    for content in (b"hello, world", whole[: len(whole) // 2]):
        files = {"model": ("net.onnx", content)}
        job_id = client.post(f"{AT}/tune", files=files, data={"trials": "4"}).json()["job"]["id"]
        assert watch(client, job_id)[-1]["data"]["state"] == "failed"
        message = client.get(f"{AT}/jobs/{job_id}").json()["job"]["message"]
        assert re.search("is a text file, not a model|is not an ONNX model", message)
        assert "/uploads/" not in message, "the message shows a path of the server"
    assert client.get("/readyz").status_code == 200


def test_a_job_is_paused_resumed_cancelled_and_deleted(opened: Rig, client: httpx.Client) -> None:
    """A paused job measures nothing, and a resumed one continues where it was."""
    form = {"zoo": "mlp", "trials": "400", "trials_per_round": "4", "cost_model": "random"}
    submitted = client.post(f"{AT}/tune", files={name: (None, form[name]) for name in form})
    at = submitted.json()["links"]["self"]
    wait_for(lambda: opened.n_trials() >= 8, 60)

    assert client.post(f"{at}/pause").json()["state"] == "paused"
    wait_for(lambda: "paused" in str(opened.state(submitted.json()["job"]["id"])))
    resumed = client.post(f"{at}/resume")
    assert resumed.json()["state"] == "queued"
    n_before = opened.n_trials()
    wait_for(lambda: opened.n_trials() > n_before + 4, 60)
    assert client.post(f"{at}/cancel").json()["state"] == "cancelled"
    assert client.delete(at).status_code == 204
    assert client.get(at).status_code == 404


def _library(client: httpx.Client, links: dict[str, str]) -> bytes:
    assert client.get(links["library"]).status_code == 409
    build = client.post(links["build"]).json()
    at = f"{links['self']}/builds/{build['id']}"

    def ended() -> dict[str, Any] | None:
        current: dict[str, Any] = client.get(at).json()
        return current if current["state"] in ("done", "failed") else None

    build = wait_for(ended, 60)
    assert build["state"] == "done", build
    library = client.get(links["library"])
    assert hashlib.sha256(library.content).hexdigest() == build["sha256"]
    assert library.headers["etag"] == f'"{build["sha256"]}"'
    assert len(library.content) == build["n_bytes"]
    return library.content


def _check_lists(client: httpx.Client, job: dict[str, Any]) -> None:
    networks = {network["id"]: network for network in client.get(f"{AT}/networks").json()["items"]}
    network = networks[job["network_id"]]
    assert network["target_ids"] == [job["target_id"]]
    tasks = client.get(f"{AT}/networks/{network['id']}/tasks").json()["items"]
    best = client.get(f"{AT}/records/best", params={"workload": tasks[0]["workload"]}).json()
    assert best["items"][0]["latency_secs"] == tasks[0]["latency_secs"]
    assert [target["id"] for target in client.get(f"{AT}/targets").json()["items"]] == [1]
    libraries = client.get(f"{AT}/libraries").json()["items"]
    assert network["id"] in [library["network_id"] for library in libraries]
    (worker,) = [item for item in client.get(f"{AT}/workers").json()["items"] if item["alive"]]
    assert worker["role"] == "active"
    audit = client.get(f"{AT}/audit", params={"job": job["id"]}).json()["items"]
    actions = sorted(entry["action"] for entry in audit)
    assert actions == ["build", "download", "tune", "tune"], (
        "a retry with its key counted as an action"
    )

"""From one upload to a verified library, by REST alone: a server, a worker, a real database."""

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.rig import Rig, rig, wait_for
from tests.service.test_supervisor import serve
from tests.tuner.networks.models import relu_model

AT = "/api/v1"
FORM = {"trials": "24", "trials_per_round": "4", "cost_model": "random", "input": "data=2,4"}


@pytest.fixture
def opened(url: str, tmp_path: Path) -> Iterator[Rig]:
    """An empty database of each kind in turn, and whoever works on it."""
    with rig(url, tmp_path, run_secs=0.01) as found:
        yield found


@pytest.fixture
def client(opened: Rig) -> Iterator[httpx.Client]:
    """A client of a service with everything."""
    _, url = serve(opened)
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as found:
        yield found


def watch(client: httpx.Client, job_id: int, after: int = 0) -> list[dict[str, Any]]:
    """Read the events of a job until it is done."""
    seen = []
    with client.stream("GET", f"{AT}/jobs/{job_id}/events?after={after}") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["kind"] == "state" and seen[-1]["data"]["state"] in ("done", "failed"):
                    break
    return seen


def test_from_a_model_to_a_library(opened: Rig, client: httpx.Client) -> None:
    """Submitted, watched, built, fetched, checked; the same again measures nothing."""
    model = relu_model("n", 4).SerializeToString()
    key = {"idempotency-key": "once"}
    files = {"model": ("tiny.onnx", model)}
    submitted = client.post(f"{AT}/tune", files=files, data=FORM, headers=key)
    assert submitted.status_code == 202, submitted.text
    job_id, links = submitted.json()["job"]["id"], submitted.json()["links"]

    events: list[dict[str, Any]] = []
    watcher = threading.Thread(target=lambda: events.extend(watch(client, job_id)))
    watcher.start()
    watcher.join(90)

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

    again = client.post(f"{AT}/tune", files=files, data=FORM, headers=key)
    by_others = client.post(f"{AT}/tune", files=files, data=FORM)
    assert (again.status_code, by_others.status_code) == (200, 200)
    assert again.json()["job"]["id"] == by_others.json()["job"]["id"] == job_id
    assert opened.n_trials() == 24
    _check_lists(client)


def test_a_model_that_is_none_fails_its_job_and_nothing_else(client: httpx.Client) -> None:
    """With a reason; the service goes on."""
    whole = relu_model(1, 4).SerializeToString()
    for content in (b"hello, world", whole[: len(whole) // 2]):
        files = {"model": ("net.onnx", content)}
        job_id = client.post(f"{AT}/tune", files=files, data={"trials": "4"}).json()["job"]["id"]
        assert watch(client, job_id)[-1]["data"]["state"] == "failed"
        message = client.get(f"{AT}/jobs/{job_id}").json()["job"]["message"]
        assert "ONNX model" in message
        assert "/uploads/" not in message, "it says where files are on the server"
    assert client.get("/readyz").status_code == 200


def test_a_job_is_paused_and_goes_on(opened: Rig, client: httpx.Client) -> None:
    """Between rounds; with more to spend it goes further."""
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
        found: dict[str, Any] = client.get(at).json()
        return found if found["state"] in ("done", "failed") else None

    build = wait_for(ended, 60)
    assert build["state"] == "done", build
    library = client.get(links["library"])
    assert hashlib.sha256(library.content).hexdigest() == build["sha256"]
    assert library.headers["etag"] == f'"{build["sha256"]}"'
    assert len(library.content) == build["n_bytes"]
    return library.content


def _check_lists(client: httpx.Client) -> None:
    (network,) = client.get(f"{AT}/networks").json()["items"]
    tasks = client.get(f"{AT}/networks/{network['id']}/tasks").json()["items"]
    best = client.get(f"{AT}/records/best", params={"workload": tasks[0]["workload"]}).json()
    assert best["items"][0]["latency_secs"] == tasks[0]["latency_secs"]
    assert len(client.get(f"{AT}/targets").json()["items"]) == 1
    (library,) = client.get(f"{AT}/libraries").json()["items"]
    assert library["network_id"] == network["id"]
    (worker,) = [each for each in client.get(f"{AT}/workers").json()["items"] if each["alive"]]
    assert worker["role"] == "active"
    metrics = client.get("/metrics").text
    assert 'subgraph_tuner_jobs{state="done"} 1.0' in metrics
    assert 'route="/api/v1/jobs/{job_id}/tasks"' in metrics
    actions = [each["action"] for each in client.get(f"{AT}/audit").json()["items"]]
    assert sorted(actions) == ["build", "tune", "tune"], "a retry with its key is no action"

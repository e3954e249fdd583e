"""Lists of networks, targets, libraries, workers and devices."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from records import libraries
from records.models import Network, Target, now
from records.service import devices, workers
from records.service.service_models import DeviceStatus, Worker
from tests.api import make
from tests.api.conftest import Served, on_each_database

AT = "/api/v1"
DEVICE_STATES: dict[str, dict[str, Any]] = {
    "h/0": {"state": "measuring", "busy_share": 0.5},
    "h/1": {"state": "apart", "reason": "12 % slower than h/0"},
    "h/2": {"state": "idle"},
}


@dataclass(frozen=True)
class Stored:
    """Rows of :func:`store`; jobs are sorted by age."""

    jobs: tuple[int, ...]
    network_id: int
    target_id: int


def store(session: Session) -> Stored:
    """Store two networks that were tuned for one target."""
    jobs = tuple(make.tuned(session, name) for name in ("old", "new"))
    network_id = session.scalars(select(Network.id).order_by(Network.id)).all()[-1]
    return Stored(jobs, network_id, session.scalars(select(Target.id)).one())


@on_each_database
def test_networks_are_listed_by_pages(served: Served) -> None:
    """Networks come newest first, each with the targets that it was split for."""
    with served.sessions.begin() as session:
        stored = store(session)

    first = served.client.get(f"{AT}/networks", params={"limit": 1}).json()
    second = served.client.get(
        f"{AT}/networks", params={"limit": 1, "cursor": first["next"]}
    ).json()

    (newest,), (oldest,) = first["items"], second["items"]
    assert (newest["id"], newest["target_ids"]) == (stored.network_id, [stored.target_id])
    assert newest["sha256"] != oldest["sha256"]
    assert {*newest} == {"id", "sha256", "name", "inputs", "target_ids", "created"}
    assert second["next"] is None


def test_the_tasks_of_a_network_are_listed(served: Served) -> None:
    """Tasks come in the network's order with weights and best latencies, for an existing target."""
    with served.sessions.begin() as session:
        stored = store(session)
    at = f"{AT}/networks/{stored.network_id}/tasks"

    default = served.client.get(at).json()
    named = served.client.get(at, params={"target": stored.target_id}).json()
    wrong = served.client.get(at, params={"target": 777})

    assert default == named
    assert (default["network_id"], default["target_id"]) == (stored.network_id, stored.target_id)
    assert [(task["weight"], task["latency_secs"]) for task in default["items"]] == [
        (1, pytest.approx(0.01 / 3)),
        (2, None),
    ]
    assert (wrong.status_code, wrong.json()["type"].split(":")[-1]) == (404, "not-found")
    assert served.client.get(f"{AT}/networks/777/tasks").status_code == 404


def test_targets_are_listed(served: Served) -> None:
    """A target comes with the device that it was resolved on."""
    with served.sessions.begin() as session:
        stored = store(session)
        target = session.get_one(Target, stored.target_id)
        expected = {
            "id": target.id,
            "spec": target.spec,
            "device": target.device,
            "fingerprint": target.fingerprint,
        }

    assert served.client.get(f"{AT}/targets").json() == {"items": [expected], "next": None}


def test_libraries_are_listed(served: Served) -> None:
    """Libraries come newest first, in pages, without their paths."""
    with served.sessions.begin() as session:
        stored = store(session)
        for key in ("k0", "k1"):
            made = libraries.NewLibrary(
                key=key,
                target_id=stored.target_id,
                manifest={"files": {}},
                path=f"/a/secret/{key}",
                network_id=stored.network_id,
            )
            libraries.ensure_library(session, made)

    first = served.client.get(f"{AT}/libraries", params={"limit": 1}).json()
    second = served.client.get(
        f"{AT}/libraries", params={"limit": 1, "cursor": first["next"]}
    ).json()

    (library,) = first["items"]
    assert [library["key"], second["items"][0]["key"], second["next"]] == ["k1", "k0", None]
    assert (library["network_id"], library["target_id"]) == (stored.network_id, stored.target_id)
    assert {*library} == {"id", "key", "network_id", "target_id", "manifest", "created"}


def test_workers_are_listed(served: Served) -> None:
    """Workers come with their activity, and whether they were seen lately."""
    with served.sessions.begin() as session:
        for number, role in enumerate(("standby", "active", "active")):
            report = workers.WorkerReport(
                name=f"host:{number}",
                host="host",
                pid=number,
                role=role,
                activity="waiting",
                device={"name": "cpu"},
                busy_share=0.25,
            )
            workers.report(session, report)
        workers.stop(session, "host:0")
        lost = session.scalars(select(Worker).where(Worker.name == "host:1")).one()
        lost.heartbeat = now() - timedelta(minutes=2)

    items = served.client.get(f"{AT}/workers").json()["items"]

    by_name = {item["name"]: item for item in items}
    assert items[-1]["name"] == "host:1"
    assert {name: item["alive"] for name, item in by_name.items()} == {
        "host:0": False,
        "host:1": False,
        "host:2": True,
    }
    assert by_name["host:0"]["activity"] == "stopped"
    assert (by_name["host:2"]["role"], by_name["host:2"]["busy_share"]) == ("active", 0.25)
    assert by_name["host:2"]["device"] == {"name": "cpu"}


def test_devices_are_listed(served: Served) -> None:
    """Devices come with their state, its reason, and whether they were seen lately."""
    with served.sessions.begin() as session:
        reports = [
            devices.DeviceReport(
                name=name, worker="w", host="h", fingerprint={"name": "GPU"}, **state
            )
            for name, state in DEVICE_STATES.items()
        ]
        devices.report(session, reports)
        session.get_one(DeviceStatus, "h/2").heartbeat = now() - timedelta(minutes=2)

    items = served.client.get(f"{AT}/devices").json()["items"]

    assert [(item["name"], item["state"], item["alive"]) for item in items] == [
        ("h/0", "measuring", True),
        ("h/1", "apart", True),
        ("h/2", "idle", False),
    ]
    assert items[1]["reason"] == "12 % slower than h/0"
    assert items[0]["fingerprint"] == {"name": "GPU"}

"""Profiles of libraries are uploaded for a job, judged here, and served."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import httpx
import pytest
from sqlalchemy.orm import Session

from records import jobs, networks
from records.service import builds
from tests.api import make
from tests.api.conftest import Served
from tests.records import make as rows
from tests.tuner.profiling.small_profile import PROFILE
from tuner.client import TunerClient
from tuner.profiling.results import LibraryProfile
from tuner.profiling.verdicts import Verdict

KERNEL = replace(PROFILE.kernels[0], workload="s0-w0")
CALL = replace(PROFILE.calls[0], workload="s0-w0")
MANY = replace(PROFILE.peers[0], shared=PROFILE.peers[0].shared * 51)


def profile_of(workload: str, **changes: Any) -> LibraryProfile:
    """Return a profile of one kernel on the device of the tests' jobs."""
    kernel = replace(PROFILE.kernels[0], workload=workload, verdict=Verdict("roof", "rm -r /"))
    call = replace(PROFILE.calls[0], workload=workload)
    target = {"target": '{"kind":"llvm"}', "device": rows.CPU, "network": "network of s0"}
    return replace(PROFILE, **{"kernels": (kernel,), "calls": (call,), **target, **changes})


def add_network(session: Session, name: str, workloads: Sequence[str]) -> int:
    """Store a network with tasks of some workloads; return its id."""
    network = rows.network(session, name)
    weighted = [(rows.workload(each), 1) for each in workloads]
    networks.record_extraction(session, network, rows.target(session), weighted, len(weighted))
    return network


def put(served: Served, job: int, content: str) -> httpx.Response:
    """Upload JSON as the profile of a job."""
    path, headers = f"/api/v1/jobs/{job}/profile", {"content-type": "application/json"}
    return served.client.put(path, content=content, headers=headers)


def test_an_uploaded_profile_has_the_facts_of_the_service(served: Served) -> None:
    """Trials, operations, verdict and command replace those of the sender; pages show them."""
    with served.sessions.begin() as session:
        job = make.tuned(session)

    missing = served.client.get(f"/api/v1/jobs/{job}/profile")
    with TunerClient(str(served.client.base_url)) as client:
        stored = client.upload_profile(job, profile_of("s0-w0"))
        assert client.profile(job) == stored

    assert missing.status_code == 404
    (kernel,) = stored.kernels
    assert (kernel.flop, kernel.n_trials) == (2e9, 4)
    assert kernel.gflops == pytest.approx(2e9 / kernel.secs / 1e9)
    assert kernel.verdict == Verdict("early", f"tuner jobs budget {job} --trials 228")
    assert "peaks of this device" in stored.roof_problem
    page = served.client.get(f"/jobs/{job}", headers={"accept": "text/html"}).text
    assert f"tuner jobs budget {job} --trials 228" in page
    assert "rm -r" not in page
    assert served.client.get("/api/v1/audit").json()["items"][0]["action"] == "profile"


@pytest.mark.parametrize(
    ("workload", "changes", "complaint"),
    [
        # The other network has the same subgraphs.
        ("s0-w0", {"network": "twin"}, "of another model, or of a library that another version"),
        ("s0-w0", {"network": "unknown"}, "of another model, or of a library that another version"),
        ("s0-w0", {"device": {"name": "B", "driver": "2"}}, "the profile is of B, built by driver"),
        ("s0-w0", {"calls": PROFILE.calls}, "the profile contradicts itself"),
        ("s0-w0", {"peers": (replace(PROFILE.peers[0], shared=()),), "target": "x"}, "is of Test"),
        # JSON of Python has NaN and halves of characters, and no database does.
        ("s0-w0", {"plain_secs": float("nan")}, "the profile contradicts itself"),
        ("s0-w0", {"model_name": "\ud800"}, "the profile contradicts itself"),
        ("s0-w0", {"kernels": (replace(KERNEL, n_calls=0),)}, "a kernel has no call"),
        ("s0-w0", {"kernels": (replace(KERNEL, n_calls=10**400),)}, "contradicts itself"),
        # A small request that would be stored as gigabytes.
        (
            *("s0-w0", {"calls": (replace(CALL, nodes=("n",) * 2000),), "peers": (MANY,)}),
            "repeats more than 100,000 names of nodes",
        ),
    ],
)
def test_what_is_not_of_the_job_is_refused(
    shared: Served, workload: str, changes: Mapping[str, Any], complaint: str
) -> None:
    """The message says what differs; nothing is stored."""
    with shared.sessions.begin() as session:
        job = make.tuned(session)
        add_network(session, "twin", ["s0-w0", "s0-w1"])

    answer = put(shared, job, json.dumps(asdict(profile_of(workload, **changes))))

    assert answer.status_code == 422, answer.text
    assert complaint in answer.json()["detail"]
    assert shared.client.get(f"/api/v1/jobs/{job}/profile").status_code == 404


@pytest.mark.parametrize(
    ("network", "status"), [("network of s0", 200), ("second", 200), ("third", 422)]
)
def test_a_job_of_several_networks_takes_profiles_of_each(
    served: Served, network: str, status: int
) -> None:
    """A network that has a subgraph of one of them is another one."""
    with served.sessions.begin() as session:
        job = make.tuned(session)
        members = [rows.network(session, "network of s0"), add_network(session, "second", ["w"])]
        add_network(session, "third", ["s0-w0", "more"])
        target = rows.target(session)
        union = networks.ensure_union(session, "union", "both", target, members)
        jobs.get_job(session, job).network_id = union.id

    content = json.dumps(asdict(profile_of("s0-w0", network=network)))

    assert put(served, job, content).status_code == status


@pytest.mark.parametrize("content", ['{"model_name": "x"}', '{"plain_secs": "long"}', "[]"])
def test_what_is_no_profile_is_refused(shared: Served, content: str) -> None:
    """The fields are checked before anything is read."""
    with shared.sessions.begin() as session:
        job = make.tuned(session)

    assert put(shared, job, content).status_code == 422


def test_a_build_with_a_profile_is_another_build(served: Served) -> None:
    """A queued build without one does not answer the request; the page says what is under way."""
    with served.sessions.begin() as session:
        job = make.tuned(session)
    path = f"/api/v1/jobs/{job}/build"

    plain = served.client.post(path).json()
    profiled = [served.client.post(path, json={"profile": True}).json() for _ in range(2)]

    assert not plain["profile"]
    assert profiled[0]["profile"]
    assert [build["id"] for build in profiled] == [plain["id"] + 1] * 2
    page = served.client.get(f"/jobs/{job}", headers={"accept": "text/html"}).text
    assert f"Build {profiled[0]['id']} is queued; its library is profiled then" in page
    with served.sessions.begin() as session:
        builds.set_build(session, profiled[0]["id"], "done", message="no profile: because")
    page = served.client.get(f"/jobs/{job}", headers={"accept": "text/html"}).text
    assert "no profile: because" in page

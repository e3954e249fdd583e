"""The processes of GPUs lease packs and send results over HTTP, which are checked line by line."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select, update

from api.clients.caps import Cap
from api.settings import ApiSettings
from records import tasks
from records.models import MeasureRecord, now
from records.service import offered_packs, remote_devices
from records.service.owners import tokens
from records.service.service_models import OfferedPack, RemoteDevice
from tests.api.conftest import Served, serving
from tests.records import make as rows
from tuner.packs import offers, registry, result_lines
from tuner.packs.registry import RegisteredCandidate, RegisteredPack

ID, KEY = "0123456789ab", "secret"
GPU = {
    "name": "NVIDIA Test",
    "uuid": "GPU-" + "-".join("a" * n for n in (8, 4, 4, 4, 12)),
    "capability": "9.0",
    "n_multiprocessors": 132,
}
OTHER = {**GPU, "uuid": GPU["uuid"].replace("a", "b")}  # type: ignore[attr-defined]
RUNNER = {"name": "lab/GPU-aaaaaaaa", "key": "0123456789abcdef"}
SECOND = {"name": "den/GPU-bbbbbbbb", "key": "fedcba9876543210"}
HEADER = {"pack": ID, "format": result_lines.FORMAT, "device": GPU}
WORKLOAD = rows.workload("w0")


def result(name: str, secs: Any = 1e-5) -> dict[str, Any]:
    """Return the row of a candidate that was timed."""
    return {"workload": WORKLOAD.hash, "candidate": name, "run_secs": [secs], "max_error": 0.0}


def lines(*written: dict[str, Any], key: str = KEY) -> str:
    """Return rows as a runner writes them."""
    return b"".join(result_lines.dump(key, row) for row in written).decode()


def post(served: Served, path: str, body: dict[str, Any], **headers: str) -> Any:
    """Send a request of a runner; return its status, and its JSON or the kind of its problem."""
    answer = served.client.post(f"/api/v1/remote/packs/{path}", json=body, headers=headers)
    content: Any = answer.json() if answer.content else None
    return answer.status_code, content if answer.is_success else content["type"].split(":")[-1]


def register(served: Served, runner: dict[str, str], gpu: dict[str, Any] = GPU) -> None:
    """Register a process, which must be accepted."""
    body = {**runner, "format": result_lines.FORMAT, "gpu": gpu}
    assert post(served, "register", body) == (204, None)


def send(served: Served, runner: dict[str, str] = RUNNER, **fields: Any) -> Any:
    """Send results; return the status, and the kind of a problem."""
    return post(served, "results", {**runner, "pack": ID, **fields})


def count(served: Served) -> int:
    """Count the records."""
    with served.sessions() as session:
        return session.scalar(select(func.count()).select_from(MeasureRecord)) or 0


def offer(served: Served) -> None:
    """Offer a pack with two candidates of one workload."""
    with served.sessions.begin() as session:
        tasks.ensure_workload(session, WORKLOAD)
        row = OfferedPack(pack=ID, sha256="0" * 64, n_bytes=10, capabilities=["9.0"], minutes=5.0)
        offered_packs.offer(session, row)
    folder = served.data_dir / offers.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    candidates = {name: RegisteredCandidate(f"trace {name}", "hash") for name in ("a", "b")}
    pack = RegisteredPack(
        pack=ID,
        key=KEY,
        made="2026-01-01",
        file="made.pyz",
        engine=WORKLOAD.engine,
        spec='{"kind":"cuda"}',
        capabilities=["9.0"],
        versions={"tvm": "1"},
        networks=["mlp"],
        workloads={WORKLOAD.hash: candidates},
    )
    registry.store_in(folder, pack, 0o600)
    offers.file_of(served.data_dir, ID).write_bytes(b"0123456789")


@pytest.fixture
def offering(served: Served) -> Served:
    """A service with a pack and a runner, on each kind of database in turn."""
    offer(served)
    register(served, RUNNER)
    return served


def test_a_runner_leases_downloads_and_reports(offering: Served) -> None:
    """Portions are stored once, whatever part of them comes again."""
    leased = post(offering, "lease", RUNNER)
    assert leased == post(offering, "lease", RUNNER)
    assert (leased[0], leased[1]["pack"], leased[1]["n_lines"]) == (200, ID, 0)
    at = f"/api/v1/remote/packs/{ID}"
    part = offering.client.get(f"{at}/file", headers={"range": "bytes=4-"})
    assert (part.status_code, part.content) == (206, b"456789")

    for _ in range(2):
        assert send(offering, lines=lines(HEADER, result("a"))) == (204, None)
    more = lines(result("a"), result("b"), result("unknown"))
    assert send(offering, first_line=1, lines=more) == (204, None)
    assert offering.client.get(f"{at}/results").text == lines(HEADER) + more
    (device,) = offering.client.get("/api/v1/devices").json()["items"]
    assert (device["state"], device["alive"]) == ("measuring", True)
    assert device["fingerprint"] == GPU
    assert f"pack {ID}" in offering.client.get("/workers").text
    assert send(offering, ended=True) == (204, None)

    assert count(offering) == 2
    assert post(offering, "lease", RUNNER)[1]["pack"] == ""
    assert send(offering, ended=True) == (404, "not-found")
    assert offering.client.get(f"{at}/file").status_code == 404
    assert offering.client.get("/api/v1/devices").json()["items"][0]["state"] == "idle"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (lines(HEADER, key="another"), 0),
        (lines(HEADER)[:-1], 0),
        (lines(HEADER), 1),
        (lines(result("a")), 0),
        (lines({**HEADER, "pack": "0" * 12}), 0),
        (lines(HEADER, HEADER), 0),
        (lines(HEADER, {"candidate": "a", "run_secs": [1e-5]}), 0),
        (lines(HEADER, {**result("a"), "workload": ["a"]}), 0),
        (lines(HEADER).replace("\n", "\n\x0b\n"), 0),
    ],
)
def test_lines_that_no_runner_of_the_pack_writes_are_refused(
    offering: Served, text: str, first: int
) -> None:
    """Nothing of the request is stored."""
    post(offering, "lease", RUNNER)

    assert send(offering, lines=text, first_line=first) == (422, "invalid")

    assert count(offering) == 0
    assert post(offering, "lease", RUNNER)[1]["n_lines"] == 0


def test_impossible_times_are_failed_records(offering: Served) -> None:
    """They are checked as those of an imported file."""
    post(offering, "lease", RUNNER)

    assert send(offering, lines=lines(HEADER, result("a", -1.0), result("b", "x"))) == (204, None)

    with offering.sessions() as session:
        assert set(session.scalars(select(MeasureRecord.error_kind))) == {"run_error"}


def test_results_are_limited(offering: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request, and all results of a pack."""
    post(offering, "lease", RUNNER)
    too_long = "x" * (offers.MAX_PORTION_CHARS + 1)
    assert send(offering, lines=too_long) == (422, "invalid")
    monkeypatch.setattr(offers, "_MAX_OTHER_CHARS", 0)
    monkeypatch.setattr(offers, "_MAX_CANDIDATE_CHARS", 100)

    assert send(offering, lines=lines(HEADER, result("a"), result("b"))) == (422, "invalid")

    assert count(offering) == 0


def test_a_lost_pack_goes_to_another_gpu_of_its_kind(offering: Served) -> None:
    """The first process has it no more, and the next one goes on behind its lines."""
    post(offering, "lease", RUNNER)
    send(offering, lines=lines(HEADER, result("a")))
    register(offering, SECOND, {**OTHER, "name": "NVIDIA Larger"})
    register(offering, SECOND, OTHER)
    assert post(offering, "lease", SECOND)[1]["pack"] == ""
    with offering.sessions.begin() as session:
        silent = update(RemoteDevice).where(RemoteDevice.name == RUNNER["name"])
        session.execute(silent.values(heartbeat=now() - 2 * remote_devices.OFFLINE_AFTER))

    register(offering, SECOND, {**OTHER, "name": "NVIDIA Larger"})
    assert post(offering, "lease", SECOND)[1]["pack"] == ""
    register(offering, SECOND, OTHER)
    assert post(offering, "lease", SECOND)[1]["n_lines"] == 2
    assert send(offering, first_line=2, lines=lines(result("b"))) == (404, "not-found")
    assert send(offering, SECOND, first_line=2, lines=lines(result("b"))) == (204, None)

    assert count(offering) == 2


def test_a_header_alone_binds_no_gpu(offering: Served) -> None:
    """A process that only claims to have a GPU keeps others from no pack."""
    post(offering, "lease", RUNNER)
    send(offering, lines=lines(HEADER))
    send(offering, first_line=1, problem="no NumPy")
    larger = {**OTHER, "name": "NVIDIA Larger"}
    register(offering, SECOND, larger)

    assert post(offering, "lease", SECOND)[1]["n_lines"] == 0
    header = lines({**HEADER, "device": larger})
    assert send(offering, SECOND, lines=header + lines(result("a"))) == (204, None)
    assert send(offering, SECOND, problem="no NumPy") == (204, None)
    assert post(offering, "lease", RUNNER)[1]["pack"] == ""


def test_a_gpu_that_changed_frees_its_pack(offering: Served) -> None:
    """Results are of one kind of GPU, and a new driver makes another one."""
    post(offering, "lease", RUNNER)
    send(offering, lines=lines(HEADER, result("a")))
    changed = {**RUNNER, "key": "f" * 32}
    register(offering, changed, {**OTHER, "name": "NVIDIA Larger"})
    register(offering, SECOND, OTHER)

    assert post(offering, "lease", changed)[1]["pack"] == ""
    assert post(offering, "lease", SECOND)[1]["pack"] == ID


def test_a_gpu_without_results_gives_a_pack_up(offering: Served) -> None:
    """After three leases, also of a process that ends without a word; another GPU gets it."""
    restarted = RUNNER | {"key": "e" * 32}
    assert post(offering, "lease", RUNNER)[1]["pack"] == ID
    register(offering, restarted)
    for _ in range(offered_packs.MAX_ATTEMPTS - 1):
        assert post(offering, "lease", restarted)[1]["pack"] == ID
        assert send(offering, restarted, problem="no NumPy") == (204, None)
    register(offering, RUNNER)
    register(offering, SECOND, OTHER)

    assert post(offering, "lease", RUNNER)[1]["pack"] == ""
    with offering.sessions() as session:
        (pack,) = offered_packs.list_packs(session)
        assert offers.state_of(pack).startswith("offered, given up by 1 GPU after 3 attempts")
        assert pack.problem == "no NumPy"
    assert post(offering, "lease", SECOND)[1]["pack"] == ID


def test_a_pack_that_fails_everywhere_is_given_up(
    offering: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that invents a GPU for each lease does not get it for ever."""
    monkeypatch.setattr(offered_packs, "MAX_ALL_ATTEMPTS", 4)
    for number in range(4):
        invented = RUNNER | {"key": f"{number:032x}"}
        register(offering, invented, {**GPU, "uuid": f"{str(GPU['uuid'])[:-1]}{number}"})
        assert post(offering, "lease", invented)[1]["pack"] == ID
        send(offering, invented, problem="no NumPy")
    register(offering, SECOND, OTHER)

    assert post(offering, "lease", SECOND)[1]["pack"] == ""
    with offering.sessions() as session:
        (pack,) = offered_packs.list_packs(session)
        assert offers.state_of(pack).startswith("given up after 4 attempts")


def test_downloads_have_a_cap(quick: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cap is that of libraries; a range that a file has not is a problem."""
    with serving(quick) as served:
        offer(served)
        at = f"/api/v1/remote/packs/{ID}/file"
        beyond = served.client.get(at, headers={"range": "bytes=99-"})
        monkeypatch.setattr(Cap, "has_room", lambda *_: False)
        refused = served.client.get(at)

    assert [answer.status_code for answer in (beyond, refused)] == [416, 429]
    for answer in (beyond, refused):
        assert answer.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) > 0


def test_the_scope_measure_is_needed(quick: ApiSettings) -> None:
    """Builders cannot lease packs, nor read them."""
    with serving(replace(quick, require_tokens=True)) as served:
        with served.sessions.begin() as session:
            secrets = [
                tokens.create_token(session, each, [each])[1] for each in ("measure", "build")
            ]
        statuses = []
        for secret in secrets:
            sender = {"authorization": f"Bearer {secret}"}
            body = {**RUNNER, "format": result_lines.FORMAT, "gpu": GPU}
            statuses.append(post(served, "register", body, **sender)[0])
            for path in ("runner.pyz", f"{ID}/file", f"{ID}/results"):
                answer = served.client.get(f"/api/v1/remote/packs/{path}", headers=sender)
                statuses.append(answer.status_code)

    assert statuses == [204, 200, 404, 404, 403, 403, 403, 403]

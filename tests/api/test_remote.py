"""The processes of remote devices lease, fetch and answer calls over HTTP."""

from dataclasses import replace
from typing import Any

import pytest

from api.settings import ApiSettings
from records.service import remote_devices
from records.service.owners import tokens
from records.service.service_models import RemoteCall
from tests.api.conftest import Served, on_each_database, serving
from tuner.executors.remote import wire

DEVICE = {"name": "lab/cpu", "key": "0123456789abcdef"}
REGISTRATION = {**DEVICE, "release": wire.release()}
DIGEST = "ab" * 32


def post(served: Served, path: str, body: dict[str, Any], **headers: str) -> Any:
    """Send a request of a device; return its status, and its JSON or the kind of its problem."""
    answer = served.client.post(f"/api/v1/remote/{path}", json=body, headers=headers)
    content: Any = answer.json() if answer.content else None
    return answer.status_code, content if answer.is_success else content["type"].split(":")[-1]


def add_call(served: Served, name: str = "1") -> None:
    """Store a call that waits."""
    with served.sessions.begin() as session:
        session.add(
            RemoteCall(
                id=name,
                device=DEVICE["name"],
                function="run",
                arguments=b"\xff",
                files=[DIGEST],
                timeout_secs=1.5,
            )
        )


@pytest.mark.parametrize(("scope", "n_builders"), [("measure", 0), ("build", 2)])
def test_each_kind_of_work_has_its_scope(served: Served, scope: str, n_builders: int) -> None:
    """A token that may measure cannot build, and the reverse."""
    with served.sessions.begin() as session:
        _, secret = tokens.create_token(session, "lab", [scope])
    headers = {"authorization": f"Bearer {secret}"}
    for count in (0, 2):
        body = {**DEVICE, "release": wire.release(builds=count > 0), "n_builders": count}
        expected = (204, None) if count == n_builders else (403, "forbidden")
        assert post(served, "register", body, **headers) == expected


def test_calls_that_a_process_knows_are_not_sent_again(served: Served) -> None:
    """The others of a lease that was lost come again."""
    post(served, "register", REGISTRATION)
    for name in ("1", "2", "3"):
        add_call(served, name)

    assert [call["id"] for call in post(served, "lease", {**DEVICE, "limit": 2})[1]["items"]] == [
        "1",
        "2",
    ]
    body = {**DEVICE, "limit": 2, "known": ["1"]}
    assert [call["id"] for call in post(served, "lease", body)[1]["items"]] == ["2", "3"]


def test_builders_are_among_the_devices(served: Served) -> None:
    """They build while they have a call without an answer."""
    name = "lab/builders"
    body = {**DEVICE, "name": name, "release": wire.release(builds=True), "n_builders": 4}
    assert post(served, "register", body)[0] == 204
    with served.sessions.begin() as session:
        session.add(
            RemoteCall(
                id="1", device=name, function="build", arguments=b"", files=[], timeout_secs=1.0
            )
        )
    states = []
    for path, more in (("lease", {"limit": 1}), ("answers", {"answers": {"1": ""}})):
        post(served, path, {**DEVICE, "name": name, **more})
        (device,) = served.client.get("/api/v1/devices").json()["items"]
        states.append(device["state"])
        page = served.client.get("/workers").text
        assert f'<span class="chip {states[-1]}">' in page
        assert "4 builders" in page

    assert states == ["building", "idle"]
    assert (device["name"], device["n_builders"], device["alive"]) == (name, 4, True)
    assert device["busy_share"] is None


@on_each_database
def test_a_process_registers_leases_fetches_and_answers(served: Served) -> None:
    """Reports are idempotent; a file is served while a call may need it."""
    assert post(served, "lease", DEVICE) == (404, "not-found")
    assert post(served, "register", REGISTRATION) == (204, None)
    add_call(served)
    status, leased = post(served, "lease", {**DEVICE, "limit": 5, "wait": 5})
    call = {"id": "1", "function": "run", "arguments": "/w==", "files": [DIGEST]}
    assert (status, leased["items"]) == (200, [{**call, "timeout_secs": 1.5}])
    file = served.data_dir / wire.FOLDER / DIGEST
    assert served.client.get(f"/api/v1/remote/files/{DIGEST}").status_code == 404
    file.parent.mkdir(parents=True)
    file.write_bytes(b"content")
    assert served.client.get(f"/api/v1/remote/files/{DIGEST}").content == b"content"

    answers = {"answers": {"1": wire.text_of(b"answer"), "2": ""}}
    for _ in range(2):
        assert post(served, "answers", {**DEVICE, **answers}) == (204, None)
    assert post(served, "lease", DEVICE) == (200, {"items": []})

    with served.sessions() as session:
        assert [call.answer for call in remote_devices.leased(session)] == [b"answer"]
    assert post(served, "answers", {**DEVICE, "leaves": True}) == (204, None)
    assert post(served, "answers", DEVICE) == (404, "not-found")


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("register", {**REGISTRATION, "release": "0.0"}, (422, "invalid")),
        ("register", {**REGISTRATION, "name": "lab"}, (422, "invalid")),
        ("answers", {**DEVICE, "answers": {"1": "!"}}, (422, "invalid")),
        ("answers", {**DEVICE, "answers": {"1": "A" * (1 << 20)}}, (413, "too-large")),
        ("lease", {**DEVICE, "key": "another-process!"}, (409, "name-in-use")),
    ],
)
def test_other_requests_are_refused(
    shared: Served, path: str, body: dict[str, Any], expected: tuple[int, str]
) -> None:
    """Releases have to be equal, bodies small, and keys those of the present process."""
    post(shared, "register", REGISTRATION)

    assert post(shared, path, body) == expected


def test_a_device_belongs_to_its_token(quick: ApiSettings) -> None:
    """Only the scope measure measures, and the name of a device that is alive is taken."""
    with serving(replace(quick, require_tokens=True)) as served:
        with served.sessions.begin() as session:
            secrets = [
                tokens.create_token(session, name, [scope])[1]
                for name, scope in (("one", "measure"), ("two", "measure"), ("three", "submit"))
            ]
        senders = [{"authorization": f"Bearer {secret}"} for secret in secrets]
        answers = [post(served, "register", REGISTRATION, **sender) for sender in senders]
        jobs = served.client.get("/api/v1/jobs", headers=senders[0]).status_code

    assert answers == [(204, None), (409, "name-in-use"), (403, "forbidden")]
    assert jobs == 403

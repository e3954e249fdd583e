"""Submission of networks: uploads, options and repeated requests."""

import contextlib
import resource
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.settings import ApiSettings
from records import jobs
from records.service.owners import audit
from tests.api.conftest import Served, on_each_database, serving
from tests.api.make import ONNX
from tests.services import Service
from tests.waiting import wait_for
from tuner.settings.request_caps import RequestCaps
from tuner.settings.retention import RetentionSettings

AT = "/api/v1/tune"


def upload(content: bytes = ONNX, name: str = "net.onnx") -> dict[str, Any]:
    """Return the file of a form."""
    return {"model": (name, content)}


def leftovers(data_dir: Path) -> list[str]:
    """Return the names of the files that an upload could leave."""
    folders = (data_dir / "uploads", data_dir / "tmp")
    return sorted(path.name for folder in folders for path in folder.iterdir())


def open_below(folder: Path) -> list[str]:
    """Return the open files of this process below a folder, including deleted ones."""
    paths = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            paths.append(str(link.readlink()))
    return [path for path in paths if path.startswith(f"{folder}/")]


def test_an_upload_becomes_a_job(served: Served) -> None:
    """The file is stored under its hash, the job has its name, and the sender is logged."""
    options = {"trials": "7", "input": ["data=1,4"], "name": "", "priority": "2"}
    answer = served.client.post(AT, files=upload(), data=options)

    assert answer.status_code == 202, answer.text
    submitted = answer.json()
    assert submitted["created"]
    assert (submitted["job"]["name"], submitted["job"]["budget_trials"]) == ("net", 7)
    assert answer.headers["location"] == submitted["links"]["self"] == "/api/v1/jobs/1"
    assert leftovers(served.data_dir) == [f"{sha256(ONNX).hexdigest()}.onnx"]
    assert (served.data_dir / "uploads" / leftovers(served.data_dir)[0]).read_bytes() == ONNX
    with served.sessions() as session:
        (noted,) = audit.actions(session)
    assert (noted.subject, noted.address, noted.action) == ("anonymous", "127.0.0.1", "tune")


def test_buckets_and_masks_are_stored_with_the_job(served: Served) -> None:
    """The API reads no model: a worker finds out which dimensions there are."""
    data = {"bucket": ["batch=4,1:2", "auto"], "mask": ["mask", "pad=1"]}
    answer = served.client.post(AT, files=upload(), data=data)

    assert answer.status_code == 202, answer.text
    with served.sessions() as session:
        (model,) = (jobs.get_job(session, 1).request or {})["models"]
    assert model["buckets"] == {"batch": [[1, 2.0], [4, 1.0]], "auto": []}
    assert model["masks"] == {"mask": 0.0, "pad": 1.0}


def test_each_set_of_shapes_is_a_network_of_the_job(served: Served) -> None:
    """A name that occurs again begins the next set; buckets take one set, a job few networks."""
    sets = {"input": ["data=1,4", "data=2,4"]}
    answer = served.client.post(AT, files=upload(), data=sets)

    assert answer.status_code == 202, answer.text
    with served.sessions() as session:
        models = (jobs.get_job(session, 1).request or {})["models"]
    assert [(model["name"], model["inputs"]) for model in models] == [
        ("net@1x4", {"data": [1, 4]}),
        ("net@2x4", {"data": [2, 4]}),
    ]
    padded = served.client.post(AT, files=upload(), data={**sets, "bucket": ["auto"]})
    many = {"input": [f"data={size},4" for size in range(1, 18)]}
    assert padded.status_code == 422
    assert (
        "takes 1 to 16 networks, got 17" in served.client.post(AT, files=upload(), data=many).text
    )


def test_an_equal_request_is_the_same_job(served: Served) -> None:
    """A job that is done answers with 200, and a larger budget resumes it."""
    first = served.client.post(AT, files=upload(), data={"trials": "7"}).json()
    with served.sessions.begin() as session:
        jobs.set_state(session, first["job"]["id"], "done")

    again = served.client.post(AT, files=upload(), data={"trials": "7"})
    more = served.client.post(AT, files=upload(), data={"trials": "9"})
    other = served.client.post(AT, files=upload(), data={"trials": "7", "seed": "1"})

    assert (again.status_code, again.json()["created"]) == (200, False)
    assert (more.status_code, more.json()["job"]["state"]) == (202, "queued")
    assert again.json()["job"]["id"] == more.json()["job"]["id"] == first["job"]["id"]
    assert other.json()["created"]


@on_each_database
def test_an_idempotency_key_stands_for_one_request(served: Served) -> None:
    """A retry gets the same job, and another request with the key a problem."""
    key = {"idempotency-key": "retry-1"}
    first = served.client.post(AT, files=upload(), data={"trials": "7"}, headers=key)
    again = served.client.post(AT, files=upload(), data={"trials": "7"}, headers=key)
    other = served.client.post(AT, files=upload(), data={"trials": "8"}, headers=key)

    assert first.json()["created"]
    assert not again.json()["created"]
    assert again.json()["job"]["id"] == first.json()["job"]["id"]
    assert (other.status_code, other.json()["type"].split(":")[-1]) == (422, "key-reused")


def test_a_key_of_a_deleted_job_submits_it_again(quick: ApiSettings) -> None:
    """A deleted job is not returned for its key."""
    key = {"idempotency-key": "retry-1"}
    with serving(quick) as served:
        first = served.client.post(AT, data={"zoo": "mlp"}, files=upload(), headers=key).json()
        served.client.post(first["links"]["self"] + "/cancel")
        served.client.delete(first["links"]["self"])
        again = served.client.post(AT, data={"zoo": "mlp"}, files=upload(), headers=key)

    assert (again.status_code, again.json()["job"]["state"]) == (202, "queued")


@pytest.mark.parametrize(
    ("files", "data", "status", "slug"),
    [
        (upload(b""), {}, 422, "bad-model"),
        (upload(b"PK\x03\x04rest"), {}, 415, "unsupported-model"),
        (upload(b"\x80\x04\x95rest"), {}, 415, "unsupported-model"),
        (upload(ONNX, "net.pt2"), {}, 415, "unsupported-model"),
        (upload(ONNX, "../../etc/passwd"), {}, 415, "unsupported-model"),
        ({"file": ("net.onnx", ONNX)}, {}, 422, "invalid"),
        ({"model": (None, "text")}, {}, 422, "invalid"),
        ({"trials": (None, "5")}, {}, 422, "invalid"),
        (upload(), {"trials": "-1"}, 422, "invalid"),
        (upload(), {"trials": "many"}, 422, "invalid"),
        (upload(), {"seconds": "nan"}, 422, "invalid"),
        (upload(), {"seconds": "inf"}, 422, "invalid"),
        (upload(), {"seed": str(2**63)}, 422, "invalid"),
        (upload(), {"priority": "1000"}, 422, "invalid"),
        (upload(), {"objective": "fame"}, 422, "invalid"),
        (upload(), {"input": "data=1,x"}, 422, "bad-model"),
        (upload(), {"bucket": "batch=0"}, 422, "invalid"),
        (upload(), {"bucket": "batch="}, 422, "invalid"),
        (upload(), {"mask": "mask=x"}, 422, "invalid"),
        (upload(), {"importance": "0"}, 422, "invalid"),
        (upload(), {"name": "a\x00b"}, 422, "invalid"),
        (upload(), {"name": "a\x1b[31mb"}, 422, "invalid"),
        (upload(), {"target": "\x00"}, 422, "invalid"),
        (upload(), {"colour": "red"}, 422, "invalid"),
        ({"nothing": (None, "")}, {}, 422, "invalid"),
        ({"nothing": (None, "")}, {"zoo": "mlp", "objective": "fame"}, 422, "invalid"),
    ],
)
def test_an_invalid_form_leaves_nothing(
    shared: Served, files: dict[str, Any], data: dict[str, str], status: int, slug: str
) -> None:
    """An invalid form leaves neither a job nor a file."""
    answer = shared.client.post(AT, files=files, data=data)

    problem = answer.json()
    assert (answer.status_code, problem["type"].split(":")[-1]) == (status, slug), problem
    assert leftovers(shared.data_dir) == []
    assert shared.client.get("/api/v1/jobs").json()["items"] == []


def test_half_a_surrogate_pair_is_rejected(served: Served) -> None:
    """PostgreSQL cannot store half a surrogate pair."""
    boundary = "b"
    body = (
        f"--{boundary}\r\ncontent-disposition: form-data; name=zoo\r\n\r\nmlp\r\n"
        f"--{boundary}\r\ncontent-disposition: form-data; name=name\r\n\r\n+2AA-\r\n"
        f"--{boundary}--\r\n"
    )
    kind = {"content-type": f"multipart/form-data; boundary={boundary}; charset=utf-7"}
    answer = served.client.post(AT, content=body.encode(), headers=kind)

    assert answer.status_code == 422, answer.text


def test_an_upload_that_is_too_large_is_rejected(quick: ApiSettings) -> None:
    """The limit holds for the announced length and for the received bytes."""
    small = ApiSettings(quick.tuner, max_upload_bytes=1000)
    body = b"x" * 3_000_000

    def chunks() -> Iterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="model"; filename="a.onnx"\r\n\r\n'
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    with serving(small) as served:
        announced = served.client.post(AT, files=upload(body))
        kind = {"content-type": "multipart/form-data; boundary=b"}
        chunked = served.client.post(AT, content=chunks(), headers=kind)
        json = served.client.post(
            "/api/v1/jobs/1/budget", content=b" " * 2_000_000, headers={"content-type": "a/json"}
        )
        remaining = leftovers(served.data_dir)

    assert [answer.status_code for answer in (announced, chunked, json)] == [413, 413, 413]
    assert announced.json()["type"].endswith("too-large")
    assert remaining == []


def test_options_above_the_limits_of_the_service_are_rejected(quick: ApiSettings) -> None:
    """The problem names the field, the limit and the setting; nothing is stored."""
    caps = RequestCaps(max_run_timeout=30.0)
    with serving(replace(quick, tuner=replace(quick.tuner, request_caps=caps))) as served:
        refused = served.client.post(AT, files=upload(), data={"run_timeout": "31"})
        accepted = served.client.post(AT, files=upload(), data={"run_timeout": "30"})
        listed = served.client.get("/api/v1/jobs").json()["items"]

    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert error["field"] == "run_timeout"
    assert "at most 30" in error["message"]
    assert "max_run_timeout" in error["message"]
    assert (accepted.status_code, len(listed)) == (202, 1)


def test_a_client_that_dies_leaves_nothing(quick: ApiSettings) -> None:
    """A connection that is reset during an upload leaves no file."""
    with serving(quick) as served:
        where = (str(served.client.base_url.host), served.client.base_url.port or 0)
        with socket.create_connection(where) as connection:
            connection.sendall(
                b"POST /api/v1/tune HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000000\r\n"
                b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
                b'content-disposition: form-data; name="model"; filename="a.onnx"\r\n\r\n'
            )
            connection.sendall(b"x" * 4_000_000)
            # A part of that size is on disk before it is complete, in a file without a name.
            wait_for(lambda: open_below(served.data_dir / "tmp"))
        wait_for(lambda: not open_below(served.data_dir / "tmp"))
        assert leftovers(served.data_dir) == []
        assert served.client.get("/api/v1/jobs").json()["items"] == []


def test_a_full_disk_is_a_problem(tmp_path: Path) -> None:
    """A full disk gets 503, leaves nothing, and the next upload succeeds."""
    service = Service(tmp_path)
    try:
        service.start_api()
        pid = service.pid("api")
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        # The system raises EFBIG, which is reported like a full disk.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (3_000_000, before[1]))
        with httpx.Client(
            base_url=service.url, timeout=30, trust_env=False, verify=False
        ) as client:
            full = client.post(AT, files=upload(ONNX + b"\0" * 5_000_000))
            remaining = leftovers(service.here.data_dir)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
            after = client.post(AT, files=upload())
    finally:
        service.stop("api")

    assert full.status_code == 503, full.text
    assert full.json()["type"].endswith("disk-full")
    assert remaining == []
    assert after.status_code == 202


def test_a_nearly_full_disk_is_a_problem_before_anything_is_stored(
    quick: ApiSettings,
) -> None:
    """Below the floor, uploads and imports get 503 with a time to try again; reading goes on."""
    floor = RetentionSettings(min_free_disk=2**60)
    tight = replace(quick, tuner=replace(quick.tuner, retention=floor))
    with serving(tight) as served:
        refused = [
            served.client.post(AT, files=upload()),
            served.client.post("/api/v1/records", content=b""),
        ]
        assert leftovers(served.data_dir) == []
        listed = served.client.get("/api/v1/jobs")

    for answer in refused:
        assert answer.status_code == 503, answer.text
        assert answer.json()["type"].endswith("disk-full")
        assert "are kept free" in answer.json()["detail"]
        assert int(answer.headers["retry-after"]) > 0
    assert (listed.status_code, listed.json()["items"]) == (200, [])


@on_each_database
def test_uploads_of_the_same_model_at_once_are_one_job(served: Served) -> None:
    """One of the concurrent uploads creates the job, and the file is complete."""
    answers: list[httpx.Response] = []

    def submit() -> None:
        with httpx.Client(base_url=served.client.base_url, timeout=30, verify=False) as client:
            answers.append(client.post(AT, files=upload(), data={"trials": "3"}))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [answer.status_code for answer in answers] == [202] * 8
    assert sum(answer.json()["created"] for answer in answers) == 1
    assert len({answer.json()["job"]["id"] for answer in answers}) == 1
    assert leftovers(served.data_dir) == [f"{sha256(ONNX).hexdigest()}.onnx"]

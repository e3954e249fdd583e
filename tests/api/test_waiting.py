"""Requests that wait for the end of a job or of a build."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI, Request
from sqlalchemy.orm import Session

from api import waiting
from api.app_state import open_state
from api.clients import auth
from api.load.fair_semaphore import SENDER, Sender
from api.settings import ApiSettings
from api.waiting import wait_until
from records import database, jobs
from records.service import builds
from records.service.owners import tokens
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving
from tests.api.test_metrics import samples
from tests.waiting import wait_for


@on_each_database
def test_a_request_waits_for_the_end_of_a_job(served: Served) -> None:
    """More of them than the service has threads do not keep others from being served."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)

    def wait(_: int) -> str:
        url = f"{served.client.base_url}/api/v1/jobs/{job_id}"
        return str(
            httpx.get(url, params={"wait": 30}, timeout=40, verify=False).json()["job"]["state"]
        )

    with ThreadPoolExecutor(40) as pool:
        requests = [pool.submit(wait, number) for number in range(40)]
        time.sleep(1.0)
        still = served.client.get(f"/api/v1/jobs/{job_id}").json()["job"]["state"]
        assert not any(each.done() for each in requests)
        with served.sessions.begin() as session:
            jobs.set_state(session, job_id, "done")
        assert {each.result() for each in requests} == {"done"}

    assert still in ("queued", "running")


def test_a_request_waits_for_the_end_of_a_build(served: Served) -> None:
    """It returns at once where the build has ended."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
        build = builds.request_build(session, job_id).id
    at = f"{served.client.base_url}/api/v1/jobs/{job_id}/builds/{build}"

    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(httpx.get, at, params={"wait": 30}, timeout=40, verify=False)
        time.sleep(0.5)
        assert not request.done()
        with served.sessions.begin() as session:
            builds.set_build(session, build, "failed", message="no compiler")
        assert request.result().json()["message"] == "no compiler"
    again = httpx.get(at, params={"wait": 60}, timeout=30, verify=False)

    assert again.json()["state"] == "failed"


@pytest.mark.parametrize(
    ("path", "wait", "status"),
    [("jobs/999", "1", 404), ("jobs/1", "61", 422), ("jobs/1", "-1", 422), ("jobs/1", "nan", 422)],
)
def test_a_wrong_wait_is_refused(shared: Served, path: str, wait: str, status: int) -> None:
    """Nothing is waited for."""
    assert shared.client.get(f"/api/v1/{path}", params={"wait": wait}).status_code == status


def test_a_wait_ends_with_its_time(served: Served) -> None:
    """The answer is the job as it is then."""
    with served.sessions.begin() as session:
        job_id = make.job(session).id

    answer = served.client.get(f"/api/v1/jobs/{job_id}", params={"wait": 0.2})

    assert answer.json()["job"]["state"] == "queued"


@pytest.mark.parametrize("path", ["jobs/{}?wait=60", "jobs/{}/builds/1?wait=60"])
def test_a_revoked_token_ends_a_wait(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The answer is 401, long before the end of the wait."""
    monkeypatch.setattr(waiting, "CHECK_INTERVAL_SECS", 0.2)
    monkeypatch.setattr(auth, "REMEMBER_SECS", 0.2)
    with serving(replace(quick, require_tokens=True)) as served, ThreadPoolExecutor(1) as pool:
        with served.sessions.begin() as session:
            _, secret = tokens.create_token(session, "a", ["read"])
            job_id = make.job(session, owner="a").id
            builds.request_build(session, job_id)
        at = f"{served.client.base_url}/api/v1/{path.format(job_id)}"
        bearer = {"authorization": f"Bearer {secret}"}
        answer = pool.submit(httpx.get, at, headers=bearer, timeout=30, verify=False)
        time.sleep(1.0)
        assert not answer.done()
        with served.sessions.begin() as session:
            tokens.revoke_token(session, "a")

        assert answer.result(15).status_code == 401


def test_a_wait_does_not_count_as_duration(quick: ApiSettings) -> None:
    """The histogram of requests shows how long the service worked on one, or on a stream."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        at = f"{served.client.base_url}/api/v1/jobs/{job_id}"
        httpx.get(at, params={"wait": 2.0}, timeout=20, verify=False)
        with (
            pytest.raises(httpx.ReadTimeout),
            httpx.stream("GET", f"{at}/events?after=1", timeout=2.0, verify=False) as stream,
        ):
            list(stream.iter_lines())
        name = ("request_seconds_sum", ("GET", "/api/v1/jobs/{job_id}", "200"))
        streamed = ("request_seconds_sum", ("GET", "/api/v1/jobs/{job_id}/events", "200"))
        wait_for(lambda: streamed in samples(served), 20)
        measured = samples(served)

    assert measured[name] < 1.0
    assert measured[streamed] < 1.0


def test_who_leaves_waits_no_more(quick: ApiSettings) -> None:
    """A client that gave up may wait again: it has no more waits than connections."""
    with serving(replace(quick, max_connections=16)) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        at = f"{served.client.base_url}/api/v1/jobs/{job_id}"
        for _ in range(8):
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(at, params={"wait": 60}, timeout=0.5, verify=False)

        assert httpx.get(at, params={"wait": 0.1}, timeout=20, verify=False).status_code == 200


def test_an_end_during_a_look_is_not_missed(quick: ApiSettings) -> None:
    """A job that ends after it was read and before the request waits for news is read again."""
    looks: list[str] = []
    is_told = threading.Event()
    engine = database.open_database(quick.tuner.database)
    sessions = database.sessions(engine)
    with sessions.begin() as session:
        job_id = make.tuned(session)

    async def always() -> bool:
        return True

    async def scenario() -> None:
        SENDER.set(Sender("client"))
        app = FastAPI()
        async with open_state(app, quick) as state:
            channel = await state.hub.open(job_id)

            async def listen() -> None:
                events = state.hub.stream(job_id, channel, channel.last, always)
                while b"event: state" not in await anext(events):
                    pass
                is_told.set()

            def is_over(session: Session) -> bool:
                looks.append(jobs.get_job(session, job_id).state)
                if len(looks) == 1:
                    with sessions.begin() as other:
                        jobs.set_state(other, job_id, "done")
                    is_told.wait(20)
                return looks[-1] == "done"

            listening = asyncio.create_task(listen())
            await wait_until(Request({"type": "http", "app": app}), job_id, 3.0, is_over)
            await listening
            state.hub.leave(job_id, channel)

    asyncio.run(scenario())
    engine.dispose()

    assert looks == ["queued", "done"]

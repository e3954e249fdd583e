"""Clients of several owners that submit, watch, change, build and download."""

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.robustness.model_mutations import mutate
from benchmarks.robustness.soak.ledger import AckedJob, Ledger

API = "/api/v1"
_TIMEOUT_SECS = 60.0
_THINK_SECS = 3.0
_STREAM_SECS = 4.0
_RETRY_SECS = 1.0
_MAX_RETRIES = 120
_N_SHAPES = 6
_GARBAGE = (b"", b"PK\x03\x04garbage", b"\x80\x04garbage")


@dataclass(frozen=True)
class Owner:
    """A token, and the number of clients that use it."""

    name: str
    secret: str


@dataclass
class Scene:
    """State that all clients share.

    Attributes:
        url: URL of the service.
        ledger: Receives everything that the service acknowledges.
        models: Models to upload.
        damaged: Models to damage and upload.
        stopping: Set when clients are to end.
    """

    url: str
    ledger: Ledger
    models: list[bytes]
    damaged: list[bytes]
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


class Client:
    """One client; all that it does is drawn from its seed, but for the answers.

    Args:
        scene: State of all clients.
        owner: Whose jobs the client reads and changes.
        seed: Seed of its actions.
    """

    def __init__(self, scene: Scene, owner: Owner, seed: str) -> None:
        self._scene, self._owner = scene, owner
        self._draw = random.Random(seed)
        self._prefix = hashlib.sha256(seed.encode()).hexdigest()[:12]
        self._n_keys = 0

    async def run(self) -> None:
        """Act until the scene ends."""
        headers = {"authorization": f"Bearer {self._owner.secret}"}
        async with httpx.AsyncClient(
            base_url=self._scene.url, headers=headers, timeout=_TIMEOUT_SECS, trust_env=False
        ) as http:
            while not self._scene.stopping.is_set():
                weights = [weight for weight, _ in _ACTIONS]
                ((_, act),) = self._draw.choices(_ACTIONS, weights)
                await act(self, http)
                pause = self._draw.expovariate(1.0 / _THINK_SECS)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._scene.stopping.wait(), pause)

    async def _send(
        self, http: httpx.AsyncClient, method: str, path: str, label: str, **more: Any
    ) -> httpx.Response | None:
        """Send a request, and judge the status; None if the connection broke."""
        ledger, began = self._scene.ledger, time.monotonic()
        try:
            answer = await http.request(method, path, **more)
        except httpx.TransportError as error:
            ledger.answers[label, type(error).__name__] += 1
            if isinstance(error, httpx.ReadTimeout):
                ledger.violate(f"{label}: no answer in {_TIMEOUT_SECS:.0f} s")
            return None
        ledger.answers[label, str(answer.status_code)] += 1
        ledger.latencies.append(time.monotonic() - began)
        self._judge(label, answer)
        return answer

    def _judge(self, label: str, answer: httpx.Response) -> None:
        status, retry_after = answer.status_code, "retry-after" in answer.headers
        if status in (429, 503):
            if not retry_after:
                self._scene.ledger.violate(f"{label}: {status} without Retry-After")
        elif status >= 500:
            self._scene.ledger.violate(f"{label}: {status} {answer.text[:300]}")

    async def _submit(
        self, http: httpx.AsyncClient, form: dict[str, Any], *, is_bad: bool = False
    ) -> None:
        """Submit a form under a new key until the service answers, and note the job."""
        self._n_keys += 1
        key = f"{self._prefix}-{self._n_keys}"
        for _ in range(_MAX_RETRIES):
            answer = await self._post(http, form, key)
            if answer is not None and answer.status_code < 429:
                break
            if self._scene.stopping.is_set():
                return
            await asyncio.sleep(_RETRY_SECS)
        else:
            self._scene.ledger.violate("tune: not accepted in two minutes")
            return
        if answer.status_code in (200, 202):
            acked = AckedJob(self._owner.name, key, form, is_bad=is_bad)
            self._scene.ledger.jobs[answer.json()["job"]["id"]] = acked
        elif not is_bad:
            self._scene.ledger.violate(f"tune: {answer.status_code} {answer.text[:300]}")

    async def _post(
        self, http: httpx.AsyncClient, form: dict[str, Any], key: str
    ) -> httpx.Response | None:
        return await self._send(
            http, "POST", f"{API}/tune", "tune", headers={"idempotency-key": key}, **form
        )

    async def submit_zoo(self, http: httpx.AsyncClient) -> None:
        """Submit a network of the zoo."""
        fields = {**self._options(), "zoo": f"mlp?batch={self._draw.randrange(1, _N_SHAPES)}"}
        await self._submit(http, {"files": [(k, (None, v)) for k, v in fields.items()]})

    async def submit_upload(self, http: httpx.AsyncClient) -> None:
        """Submit a model as a file."""
        await self._submit(http, self._upload(self._draw.choice(self._scene.models)))

    async def submit_damaged(self, http: httpx.AsyncClient) -> None:
        """Submit a damaged model, which the service may accept and then fails, or tunes."""
        content = mutate(self._draw, self._draw.choice(self._scene.damaged))
        await self._submit(http, self._upload(content), is_bad=True)

    async def submit_garbage(self, http: httpx.AsyncClient) -> None:
        """Submit what is not a model at all."""
        form = self._upload(self._draw.choice(_GARBAGE))
        answer = await self._post(http, form, f"{self._prefix}-g{self._draw.getrandbits(32)}")
        if answer is not None and answer.status_code < 400:
            self._scene.ledger.violate(f"garbage: {answer.status_code}")

    async def submit_again(self, http: httpx.AsyncClient) -> None:
        """Send an earlier submission again: it has to be the same job."""
        own = [(job, acked) for job, acked in self._own() if "delete" not in acked.actions]
        if not own:
            return
        job, acked = self._draw.choice(own)
        answer = await self._post(http, acked.form, acked.key)
        if answer is None or answer.status_code >= 429 or "delete" in acked.actions:
            return
        again = answer.json().get("job", {}).get("id") if answer.is_success else None
        if again != job:
            self._scene.ledger.violate(f"job {job} sent again: {answer.status_code}, job {again}")

    async def change(self, http: httpx.AsyncClient) -> None:
        """Cancel, pause, resume, extend, reprioritise or delete a job."""
        own = self._own()
        if not own:
            return
        job, acked = self._draw.choice(own)
        action = self._draw.choice(
            ("cancel", "pause", "resume", "resume", "budget", "priority", "delete")
        )
        path, body = f"{API}/jobs/{job}/{action}", None
        if action == "budget":
            body = {"trials": self._draw.choice((8, 24, 48))}
        if action == "priority":
            body = {"priority": self._draw.randrange(4)}
        method = "DELETE" if action == "delete" else "POST"
        if action == "delete":
            path = f"{API}/jobs/{job}"
            # The answer may get lost after the deletion.
            acked.actions.append("delete")
        answer = await self._send(http, method, path, action, json=body)
        if answer is None or answer.status_code >= 429:
            return
        if answer.is_success and action != "delete":
            acked.actions.append(action)
        elif answer.status_code == 404 and "delete" not in acked.actions:
            self._scene.ledger.violate(f"job {job}: {action} finds no job")

    async def read(self, http: httpx.AsyncClient) -> None:
        """Read a job, or one of its views."""
        own = self._own()
        if not own:
            return
        job, acked = self._draw.choice(own)
        view = self._draw.choice(("", "", "/tasks", "/picks", "/history", "/failures"))
        answer = await self._send(http, "GET", f"{API}/jobs/{job}{view}", f"job{view}")
        if answer is not None and answer.status_code == 404 and "delete" not in acked.actions:
            self._scene.ledger.violate(f"job {job}{view} is lost")

    async def list_all(self, http: httpx.AsyncClient) -> None:
        """Read one of the lists."""
        path = self._draw.choice(
            ("jobs", "records/best", "records/list", "workers", "networks", "devices", "usage")
        )
        await self._send(http, "GET", f"{API}/{path}", path)

    async def watch(self, http: httpx.AsyncClient) -> None:
        """Read the events of a job for a while, and note each."""
        own = self._own()
        if not own:
            return
        job, _ = self._draw.choice(own)
        known = [sequence for number, sequence in self._scene.ledger.events if number == job]
        after = max(known, default=0) if self._draw.random() < 0.7 else 0
        path = f"{API}/jobs/{job}/events"
        try:
            async with asyncio.timeout(_STREAM_SECS):
                async with http.stream("GET", path, params={"after": after}) as answer:
                    status = str(answer.status_code)
                    self._scene.ledger.answers["events", status] += 1
                    if answer.status_code >= 400:
                        await answer.aread()
                        self._judge("events", answer)
                        return
                    async for line in answer.aiter_lines():
                        if line.startswith("data:"):
                            after = self._note_event(job, after, json.loads(line[5:]))
        except TimeoutError:
            return
        except httpx.TransportError as error:
            self._scene.ledger.answers["events", type(error).__name__] += 1

    def _note_event(self, job: int, after: int, event: dict[str, Any]) -> int:
        ledger, sequence = self._scene.ledger, event["sequence"]
        if sequence != after + 1:
            ledger.violate(f"job {job}: event {sequence} came after {after}")
        seen = (event["kind"], json.dumps(event["data"], sort_keys=True))
        if ledger.events.setdefault((job, sequence), seen) != seen:
            ledger.violate(f"job {job}: event {sequence} changed")
        return int(sequence)

    async def build(self, http: httpx.AsyncClient) -> None:
        """Request the library of a job."""
        own = [(job, acked) for job, acked in self._own() if not acked.is_bad]
        if not own:
            return
        job, _ = self._draw.choice(own)
        answer = await self._send(http, "POST", f"{API}/jobs/{job}/build", "build", json={})
        if answer is not None and answer.status_code == 202:
            self._scene.ledger.builds[answer.json()["id"]] = job

    async def download(self, http: httpx.AsyncClient) -> None:
        """Download the library of a job, and compare it with its digest."""
        built = sorted(set(self._scene.ledger.builds.values()) & {job for job, _ in self._own()})
        if not built:
            return
        job = self._draw.choice(built)
        answer = await self._send(http, "GET", f"{API}/jobs/{job}/library", "library")
        if answer is None or answer.status_code != 200:
            return
        digest = hashlib.sha256(answer.content).hexdigest()
        if digest != answer.headers["x-sha256"]:
            self._scene.ledger.violate(f"job {job}: the library differs from its digest")
        self._scene.ledger.archives.setdefault(job, set()).add(digest)

    def _own(self) -> list[tuple[int, AckedJob]]:
        jobs = list(self._scene.ledger.jobs.items())
        return [(job, acked) for job, acked in jobs if acked.owner == self._owner.name]

    def _options(self) -> dict[str, str]:
        return {
            "trials": str(self._draw.choice((0, 8, 16, 32))),
            "trials_per_round": "4",
            "cost_model": "random",
            "seed": str(self._draw.getrandbits(31)),
            "name": f"soak {self._prefix}",
        }

    def _upload(self, content: bytes) -> dict[str, Any]:
        fields = [(name, (None, value)) for name, value in self._options().items()]
        return {"files": [*fields, ("model", ("model.onnx", content))]}


_Action = Callable[[Client, httpx.AsyncClient], Coroutine[Any, Any, None]]
# Submissions are rare: each takes a process of its own about two seconds.
_ACTIONS: tuple[tuple[float, _Action], ...] = (
    (1.2, Client.submit_zoo),
    (0.5, Client.submit_upload),
    (0.5, Client.submit_damaged),
    (1.0, Client.submit_garbage),
    (2.0, Client.submit_again),
    (5.0, Client.change),
    (35.0, Client.read),
    (15.0, Client.list_all),
    (20.0, Client.watch),
    (3.0, Client.build),
    (6.0, Client.download),
)


def good_models() -> list[bytes]:
    """Return models to upload, of different shapes."""
    from tuner.networks.zoo import catalogue

    return [catalogue.build(f"mlp?batch={batch}").SerializeToString() for batch in (1, 2, 3)]

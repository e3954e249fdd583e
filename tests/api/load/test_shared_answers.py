"""Equal requests that wait are served together, and each as if it had been served alone."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.load.fair_semaphore import SENDER, FairSemaphore, Peer, Sender
from api.load.shared_answers import SharedAnswers


class _Service:
    """Serves a number as it is when a request gets the only slot, once it may end."""

    def __init__(self) -> None:
        self.slots = FairSemaphore(1, 100)
        self.may_end = asyncio.Event()
        self.number, self.n_served = 0, 0
        self._shared = SharedAnswers(self._serve)

    async def get(self, path: str = "/", peer: Peer | None = None, token: str = "a") -> str:
        """Return the body of an answer."""
        SENDER.set(Sender("c", peer or Peer()))
        headers = [(b"authorization", token.encode())]
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b""}
        body = b""

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal body
            body += message.get("body", b"")

        await self._shared(scope | {"headers": headers}, _receive, send)
        return body.decode()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.slots.slot():
            self.n_served += 1
            text = f"{self.number}"
            await self.may_end.wait()
        if scope["path"] == "/stream":
            await StreamingResponse(iter([text]))(scope, receive, send)
        else:
            await PlainTextResponse(text)(scope, receive, send)


async def _receive() -> MutableMapping[str, Any]:
    await asyncio.sleep(3600)
    return {"type": "http.disconnect"}


async def _start(call: Awaitable[str]) -> "asyncio.Task[str]":
    """Start a request, until it waits."""
    task = asyncio.ensure_future(call)
    for _ in range(5):
        await asyncio.sleep(0)
    return task


def _run(scenario: Callable[[_Service], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            await scenario(_Service())

    asyncio.run(run())


def test_those_that_wait_share_an_answer_that_is_read_after_they_came() -> None:
    """One that comes after the slot was taken sees what changed since."""

    async def scenario(service: _Service) -> None:
        first = await _start(service.get())
        service.number = 1
        waiting = [await _start(service.get()) for _ in range(50)]
        others = [await _start(service.get(token="b")), await _start(service.get("/other"))]
        service.may_end.set()
        assert await first == "0"
        assert await asyncio.gather(*waiting, *others) == ["1"] * 52
        assert service.n_served == 4

    _run(scenario)


def test_the_rest_get_an_answer_if_the_client_of_one_leaves() -> None:
    """Also if it is the one that waits for the slot; another one takes its place."""

    async def scenario(service: _Service) -> None:
        peers = [Peer() for _ in range(4)]
        first = await _start(service.get())
        waiting = [await _start(service.get(peer=peer)) for peer in peers]
        peers[0].leave()
        peers[2].leave()
        gone = [*waiting[::2], await _start(service.get(peer=peers[0]))]
        outcomes = await asyncio.gather(*gone, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ClientDisconnect] * 3
        service.may_end.set()
        assert await asyncio.gather(*[first, waiting[1], waiting[3]]) == ["0"] * 3
        assert service.n_served == 2

    _run(scenario)


def test_a_stream_is_served_to_each() -> None:
    """No request waits for the end of another one."""

    async def scenario(service: _Service) -> None:
        streams = [await _start(service.get("/stream")) for _ in range(5)]
        service.may_end.set()
        assert await asyncio.gather(*streams) == ["0"] * 5
        assert service.n_served == 5

    _run(scenario)


def test_one_that_asks_calmly_does_not_wait_for_one_in_a_hurry() -> None:
    """The semaphore lets it go first."""

    async def scenario(service: _Service) -> None:
        hasty = Peer(answered=10.0)
        hasty.ask(10.0)
        first = await _start(service.get())
        waiting = [await _start(service.get(peer=peer)) for peer in (hasty, Peer())]
        service.may_end.set()
        assert await asyncio.gather(first, *waiting) == ["0"] * 3
        assert service.n_served == 3

    _run(scenario)

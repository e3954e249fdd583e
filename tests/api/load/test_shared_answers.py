"""Equal requests that wait are served together, and each as if it had been served alone."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.load.fair_semaphore import SENDER, FairSemaphore, Peer, Sender
from api.load.shared_answers import SharedAnswers


class _Service:
    """Serves a number as it is when a request gets the only slot, once it may end."""

    def __init__(self) -> None:
        self.slots, self.writers = FairSemaphore(1, 100), FairSemaphore(1, 100, writes=True)
        self.may_end = asyncio.Event()
        self.number = 0
        self.served: list[str] = []
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
            self.served.append(scope["path"])
            text = f"{self.number}"
            await self.may_end.wait()
        if scope["path"] == "/stream":
            await StreamingResponse(iter([text]))(scope, receive, send)
        elif scope["path"] == "/unchanged":
            await Response(status_code=304)(scope, receive, send)
        elif scope["path"] == "/fails":
            raise ValueError(text)
        elif scope["path"] == "/writes":
            async with self.writers.slot():
                await PlainTextResponse(text)(scope, receive, send)
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
        assert len(service.served) == 4

    _run(scenario)


def test_the_rest_get_an_answer_if_the_client_of_one_leaves() -> None:
    """Also if it is the one that waits for the slot; the others keep its place."""

    async def scenario(service: _Service) -> None:
        peers = [Peer() for _ in range(4)]
        first = await _start(service.get())
        waiting = [await _start(service.get(peer=peer)) for peer in peers]
        behind = await _start(service.get("/other"))
        peers[0].leave()
        peers[2].leave()
        gone = [waiting[2], await _start(service.get(peer=peers[0]))]
        outcomes = await asyncio.gather(*gone, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ClientDisconnect] * 2
        service.may_end.set()
        assert await asyncio.gather(*[first, waiting[1], waiting[3], behind]) == ["0"] * 4
        assert service.served == ["/", "/", "/other"]

    _run(scenario)


def test_none_is_served_if_all_clients_leave() -> None:
    """As if each had waited on its own."""

    async def scenario(service: _Service) -> None:
        peers = [Peer() for _ in range(3)]
        first = await _start(service.get())
        waiting = [await _start(service.get(peer=peer)) for peer in peers]
        for peer in peers:
            peer.leave()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ClientDisconnect] * 3
        service.may_end.set()
        assert await first == "0"
        assert len(service.served) == 1

    _run(scenario)


def test_an_answer_without_a_body_is_shared() -> None:
    """It has no length."""

    async def scenario(service: _Service) -> None:
        first = await _start(service.get())
        waiting = [await _start(service.get("/unchanged")) for _ in range(5)]
        service.may_end.set()
        assert await asyncio.gather(first, *waiting) == ["0", *[""] * 5]
        assert len(service.served) == 2

    _run(scenario)


def test_requests_that_write_are_served_each() -> None:
    """Each of them writes."""

    async def scenario(service: _Service) -> None:
        waiting = [await _start(service.get("/writes")) for _ in range(5)]
        service.may_end.set()
        assert await asyncio.gather(*waiting) == ["0"] * 5
        assert len(service.served) == 5

    _run(scenario)


def test_after_an_error_the_rest_wait_at_once_for_slots_of_their_own() -> None:
    """They do not wait for each other."""

    async def scenario(service: _Service) -> None:
        first = await _start(service.get())
        waiting = [await _start(service.get("/fails")) for _ in range(3)]
        other = await _start(service.get("/other"))
        service.may_end.set()
        assert [await first, await other] == ["0"] * 2
        last = await _start(service.get("/last"))
        outcomes = await asyncio.gather(*waiting, last, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [*[ValueError] * 3, str]
        assert service.served == ["/", "/fails", "/other", "/fails", "/fails", "/last"]

    _run(scenario)


def test_a_stream_is_served_to_each() -> None:
    """No request waits for the end of another one."""

    async def scenario(service: _Service) -> None:
        streams = [await _start(service.get("/stream")) for _ in range(5)]
        service.may_end.set()
        assert await asyncio.gather(*streams) == ["0"] * 5
        assert len(service.served) == 5

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
        assert len(service.served) == 3

    _run(scenario)

"""Middleware that serves one of several equal requests that wait, and answers all of them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.load.fair_semaphore import SENDER, Peer, Sender
from api.load.protocol import PROBES

# The whole answer, or None if each must be served on its own.
_Answer: TypeAlias = list[Message] | None
# Answers without a body, which have no length.
_EMPTY = (204, 304)


@dataclass(eq=False)
class _Group(Peer):
    """The clients of a request that is served and of those that wait for its answer.

    Its place in a queue is theirs until all of them have left.
    """

    sender: Sender = field(kw_only=True)
    scope: Scope = field(kw_only=True)
    _waiters: "list[asyncio.Future[_Answer]]" = field(default_factory=list)

    @contextmanager
    def joined(self, peer: Peer) -> Iterator["asyncio.Future[_Answer]"]:
        """Add a client during the block; the future is cancelled when the client leaves."""
        waiter: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        waiter.add_done_callback(lambda _: self._look())
        peer.wait_by(waiter)
        try:
            yield waiter
        finally:
            peer.wait_by(None)
            waiter.cancel()

    def part(self) -> None:
        """Let those that wait be served on their own."""
        self.end(None)

    def end(self, answer: _Answer) -> None:
        """Answer those that wait, and admit no more."""
        self.sender.has_begun = True
        for waiter in self._waiters[1:]:
            if not waiter.done():
                waiter.set_result(answer)
        del self._waiters[1:]
        self._look()

    def _look(self) -> None:
        if all(waiter.cancelled() for waiter in self._waiters):
            self.leave()


class SharedAnswers:
    """Middleware that serves GET requests with equal heads together while they wait for a slot.

    A request joins another one of its client only before that got its slot, so the answer has
    whatever the client changed before. Not shared are answers of requests that write, wait for news
    or download a file, those whose length is not known, such as streams, and those of several
    parts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._groups: dict[Any, _Group] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or answer it as the equal one that waits already.

        Raises:
            ClientDisconnect: If the client left while it waited.
        """
        sender = SENDER.get(None)
        if sender is None or scope.get("method") != "GET" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        peer, path, query = sender.peer, scope["path"], scope["query_string"]
        # One that need not let others go first does not wait for one that must.
        key = (sender.client, peer.is_hasty, path, query, *scope["headers"])
        group = self._groups.get(key)
        if group is None or group.sender.has_begun:
            group = self._groups[key] = _Group(
                is_hasty=peer.is_hasty, is_gone=peer.is_gone, sender=sender, scope=scope
            )
            with group.joined(peer):
                sender.peer = group
                await self._lead(group, key, receive, send)
            return
        with group.joined(peer) as waiter:
            await asyncio.wait([waiter])
        if waiter.cancelled():
            raise ClientDisconnect
        if (answer := waiter.result()) is None:
            await self._app(scope, receive, send)
            return
        scope.update({**group.scope, **scope})  # route and subject, for the access log
        for message in answer:
            await send(message)

    async def _lead(self, group: _Group, key: Any, receive: Receive, send: Send) -> None:
        """Serve a request, and give its answer to those that wait."""
        held: list[Message] = []

        async def noted(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            if is_start and (
                message["status"] in _EMPTY
                or any(name == b"content-length" for name, _ in message["headers"])
            ):
                held.append(message)
                return
            # The others get it first: the client of this request may read slowly.
            group.end(None if is_start or message.get("more_body", False) else [*held, message])
            while held:
                await send(held.pop())
            await send(message)

        try:
            await self._app(group.scope, receive, noted)
        finally:
            group.part()
            if self._groups.get(key) is group:
                del self._groups[key]

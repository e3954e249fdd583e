"""Middleware that serves one of several equal requests that wait, and answers all of them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.load.fair_semaphore import SENDER, Sender

_Answer: TypeAlias = list[Message]


@dataclass(eq=False)
class _Group:
    """A request that is served, and those that wait for its answer.

    They get the whole answer, an empty one if each must be served on its own, or None if the client
    of the served request left.
    """

    sender: Sender
    scope: Scope
    waiters: "list[asyncio.Future[_Answer | None]]" = field(default_factory=list)

    async def wait(self, sender: Sender) -> _Answer | None:
        """Return the answer for another request.

        Raises:
            ClientDisconnect: If the client of the other request left.
        """
        if sender.peer.is_gone:
            raise ClientDisconnect
        waiter: asyncio.Future[_Answer | None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        sender.peer.wait_by(waiter)
        try:
            await asyncio.wait([waiter])
        finally:
            sender.peer.wait_by(None)
            waiter.cancel()
        if waiter.cancelled():
            raise ClientDisconnect
        return waiter.result()

    def end(self, answer: _Answer | None) -> None:
        """Answer those that wait, and admit no more."""
        self.sender.has_begun = True
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(answer)
        self.waiters.clear()


class SharedAnswers:
    """Middleware that serves GET requests with equal heads together while they wait for a slot.

    A request joins another one of its client only before that got its slot, so the answer has
    whatever the client changed before. Answers whose length is not known, such as streams, and
    those of several parts are not shared.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._groups: dict[Any, _Group] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or answer it as the equal one that waits already."""
        sender = SENDER.get(None)
        if sender is None or scope.get("method") != "GET":
            await self._app(scope, receive, send)
            return
        # One that need not let others go first does not wait for one that must.
        haste, path, query = sender.peer.is_hasty, scope["path"], scope["query_string"]
        key = (sender.client, haste, path, query, *scope["headers"])
        while (group := self._groups.get(key)) is not None and not group.sender.has_begun:
            answer = await group.wait(sender)
            if answer:
                scope.update({**group.scope, **scope})  # route and subject, for the access log
                for message in answer:
                    await send(message)
            elif answer is not None:
                await self._app(scope, receive, send)
            if answer is not None:
                return
        group = self._groups[key] = _Group(sender, scope)
        held: _Answer = []

        async def noted(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            if is_start and any(name == b"content-length" for name, _ in message["headers"]):
                held.append(message)
                return
            # The others get it first: the client of this request may read slowly.
            group.end([] if is_start or message.get("more_body", False) else [*held, message])
            while held:
                await send(held.pop())
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            group.end(None)
            if self._groups.get(key) is group:
                del self._groups[key]

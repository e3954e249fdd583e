"""Transactions of requests: each waits for a slot in the event loop, then runs in a thread."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import anyio
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.load.fair_semaphore import FairSemaphore

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Transactions:
    """Transactions of one kind, reading or writing.

    Attributes:
        slots: Slots, which those of other kinds may share; there is a connection for each.
        open: Opens a session, which connects at its first statement.
    """

    slots: FairSemaphore
    open: Callable[[], AbstractContextManager[Session]]

    async def run(
        self,
        call: Callable[Concatenate[Session, Arguments], Answer],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Answer:
        """Return what a function returns that gets a session, in a thread.

        Raises:
            Problem: If the database hangs.
            ClientDisconnect: If the client left before its turn; nothing was done.
        """

        def transact() -> Answer:
            with self.open() as session:
                return call(session, *args, **kwargs)

        async with self.slots.slot():
            return await run_in_threadpool(transact)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Hold a slot and a session during the block, which uses it in threads.

        Raises:
            Problem: If the database hangs.
            ClientDisconnect: If the client left before its turn.
        """
        async with self.slots.slot():
            opened = self.open()
            session = opened.__enter__()  # waits for nothing, because it does not connect yet
            try:
                yield session
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    await run_in_threadpool(
                        opened.__exit__, type(error), error, error.__traceback__
                    )
                raise
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(opened.__exit__, None, None, None)

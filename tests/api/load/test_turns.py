"""Requests start a few at a time, in turn of their clients."""

import asyncio
from functools import partial

import pytest

from api.load import turns
from api.load.fair_semaphore import SENDER, Sender
from api.load.turns import Turns
from api.settings import ApiSettings
from tests.api.conftest import serving
from tests.api.load.test_connections import connected

_PROBE = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("client", ["crowd", "lone"])
def test_a_new_request_does_not_wait_for_all_that_came_before(client: str) -> None:
    """It goes before those of connections in a hurry, and each client has turns."""
    started: list[str] = []

    async def scenario() -> None:
        queue = Turns()
        for _ in range(100):
            queue.add("crowd", partial(started.append, "hasty"), is_hasty=True)
        await asyncio.sleep(0)
        queue.add(client, partial(started.append, "new"), is_hasty=False)
        while len(started) < 101:
            await asyncio.sleep(0)

    asyncio.run(scenario())

    assert started.index("new") <= 8


@pytest.mark.parametrize(("max_delay_secs", "starts"), [(3600.0, False), (0.0, True)])
def test_connections_that_arrive_go_before_requests(
    monkeypatch: pytest.MonkeyPatch, max_delay_secs: float, *, starts: bool
) -> None:
    """Requests wait until none arrives, but not for long."""
    monkeypatch.setattr(turns, "_MAX_DELAY_SECS", max_delay_secs)
    started: list[str] = []

    async def scenario() -> None:
        queue = Turns()
        queue.add("client", partial(started.append, "request"), is_hasty=False)
        for _ in range(10):
            queue.note_arrival()
            await asyncio.sleep(0)
        assert bool(started) is starts
        for _ in range(turns._N_QUIET + 1):
            await asyncio.sleep(0)

    asyncio.run(scenario())

    assert started == ["request"]


def test_a_request_inherits_no_sender() -> None:
    """It starts in the context of none, whichever request it waits behind."""
    senders: list[Sender | None] = []

    async def scenario() -> None:
        SENDER.set(Sender("other"))
        queue = Turns()
        for _ in range(20):
            queue.add("client", lambda: senders.append(SENDER.get(None)), is_hasty=False)
        while len(senders) < 20:
            await asyncio.sleep(0)

    asyncio.run(scenario())

    assert senders == [None] * 20


def test_one_that_does_not_start_stops_no_other() -> None:
    """Its error is told to the event loop."""
    started: list[str] = []
    errors: list[BaseException] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: errors.append(context["exception"])
        )
        queue = Turns()
        for name in ("first", "second"):
            queue.add("client", [].pop, is_hasty=False)
            queue.add("client", partial(started.append, name), is_hasty=False)
            for _ in range(turns._N_QUIET + 1):
                await asyncio.sleep(0)

    asyncio.run(scenario())

    assert started == ["first", "second"]
    assert [type(error) for error in errors] == [IndexError, IndexError]


def test_requests_behind_another_on_a_connection_are_in_a_hurry(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of connections that ask once go first, and probes have turns of their own."""
    added: list[bool] = []
    clients: list[str] = []
    add = Turns.add

    def noted(self: Turns, client: str, start: turns.Start, *, is_hasty: bool) -> None:
        added.append(is_hasty)
        clients.append(client)
        add(self, client, start, is_hasty=is_hasty)

    with serving(quick) as served, connected(served) as connection:
        monkeypatch.setattr(Turns, "add", noted)
        connection.sendall(_PROBE * 3 + _PROBE.replace(b"healthz", b"api/v1/jobs"))
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 4:
            answers += connection.recv(2**16)

    assert added == [False, True, True, True]
    assert clients[0] == clients[2] != clients[3]

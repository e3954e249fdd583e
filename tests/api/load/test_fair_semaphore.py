"""Slots are shared among clients, and given back however a request ends."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy.exc import OperationalError
from starlette.requests import ClientDisconnect

from api.errors import Problem
from api.load import fair_semaphore
from api.load.fair_semaphore import SENDER, FairSemaphore, Peer, Sender


async def _work(
    semaphore: FairSemaphore, sender: Sender, done: list[str], error: Exception | None = None
) -> None:
    SENDER.set(sender)
    async with semaphore.slot():
        await asyncio.sleep(0)
        done.append(sender.client)
        if error is not None:
            raise error


def _run(scenario: Callable[[FairSemaphore], Awaitable[None]], max_waiting: int = 100) -> None:
    async def run() -> None:
        semaphore = FairSemaphore(1, max_waiting)
        await scenario(semaphore)
        # The slot is free in the end.
        SENDER.set(Sender("last"))
        async with asyncio.timeout(5), semaphore.slot():
            pass

    asyncio.run(run())


@pytest.mark.parametrize("other", [Sender("token other"), Sender("token many", program="curl")])
def test_clients_take_turns(other: Sender) -> None:
    """A client, or program, with one request waits for one request of a client with many."""
    done: list[Sender] = []

    async def work(semaphore: FairSemaphore, sender: Sender) -> None:
        SENDER.set(sender)
        async with semaphore.slot():
            await asyncio.sleep(0)
            done.append(sender)

    async def scenario(semaphore: FairSemaphore) -> None:
        senders = [*(Sender("token many") for _ in range(20)), other]
        await asyncio.gather(*(work(semaphore, sender) for sender in senders))

    _run(scenario)

    assert done.index(other) <= 2
    assert len(done) == 21


def test_a_connection_that_paused_goes_before_those_that_ask_at_once() -> None:
    """The request after a pause comes first, and the others of the client in their order."""
    done: list[str] = []

    async def work(semaphore: FairSemaphore, name: str, pause_secs: float) -> None:
        peer = Peer(answered=10.0)
        peer.ask(10.0 + pause_secs)
        SENDER.set(Sender("c", peer))
        async with semaphore.slot():
            await asyncio.sleep(0)
            done.append(name)

    async def scenario(semaphore: FairSemaphore) -> None:
        await asyncio.gather(
            *(work(semaphore, f"hasty {number}", 0.0) for number in range(5)),
            work(semaphore, "calm", 10.0),
        )

    _run(scenario)

    assert done == ["hasty 0", "calm", "hasty 1", "hasty 2", "hasty 3", "hasty 4"]


def test_a_request_ends_its_wait_when_its_client_leaves() -> None:
    """It does no work, and the next one gets the slot."""
    done: list[str] = []
    gone = Peer()

    async def scenario(semaphore: FairSemaphore) -> None:
        async with semaphore.slot():
            waiting = [
                asyncio.create_task(_work(semaphore, Sender("gone", gone), done)),
                asyncio.create_task(_work(semaphore, Sender("here"), done)),
            ]
            await asyncio.sleep(0)
            gone.leave()
            with pytest.raises(ClientDisconnect):
                await waiting[0]
        await waiting[1]
        with pytest.raises(ClientDisconnect):
            await _work(semaphore, Sender("gone", gone), done)

    _run(scenario)

    assert done == ["here"]


def test_a_cancelled_request_gives_its_slot_back() -> None:
    """At every moment: while it waits, just as it gets the slot, and while it works."""
    done: list[str] = []

    async def scenario(semaphore: FairSemaphore) -> None:
        for n_steps in range(6):
            async with semaphore.slot():
                task = asyncio.create_task(_work(semaphore, Sender("c"), done))
                await asyncio.sleep(0)
            for _ in range(n_steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    _run(scenario)


def test_a_request_takes_one_slot_at_a_time() -> None:
    """One that waited for a second slot could wait for itself."""

    async def scenario(semaphore: FairSemaphore) -> None:
        SENDER.set(Sender("c"))
        async with FairSemaphore(1, 1).slot():
            with pytest.raises(RuntimeError, match="holds a slot"):
                async with semaphore.slot():
                    pass

    _run(scenario)


def test_waiting_ends_where_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits on while others end, and is refused when none did for long."""
    monkeypatch.setattr(fair_semaphore, "_STALL_TIMEOUT_SECS", 0.3)

    async def scenario(semaphore: FairSemaphore) -> None:
        async with semaphore.slot():
            with pytest.raises(Problem) as refused:
                await _work(semaphore, Sender("c"), [])
        assert refused.value.slug == "unavailable"
        assert refused.value.headers == {"retry-after": "5"}

        async def slow() -> None:
            SENDER.set(Sender("slow"))
            async with semaphore.slot():
                await asyncio.sleep(0.15)

        done: list[str] = []
        await asyncio.gather(*(slow() for _ in range(5)), _work(semaphore, Sender("slow"), done))
        assert done == ["slow"]

    _run(scenario)


def test_failures_of_the_database_are_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait for a database that hangs are refused, although others end with errors."""
    monkeypatch.setattr(fair_semaphore, "_STALL_TIMEOUT_SECS", 0.3)

    async def scenario(semaphore: FairSemaphore) -> None:
        async def fail() -> None:
            SENDER.set(Sender("c"))
            async with semaphore.slot():
                await asyncio.sleep(0.2)
                raise OperationalError("SELECT 1", {}, Exception("gone"))

        outcomes = await asyncio.gather(*(fail() for _ in range(5)), return_exceptions=True)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [OperationalError] * 2 + [Problem] * 3

    _run(scenario)


def test_a_request_that_was_given_up_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the queue when its client leaves, its task is cancelled, or it waits too long."""
    done: list[str] = []

    async def scenario(semaphore: FairSemaphore) -> None:
        async with semaphore.slot():
            for end in ("leave", "cancel", "stall"):
                peers = [Peer(answered=0.0 if number else -1.0) for number in range(2)]
                for peer in peers:
                    peer.ask(0.0)
                monkeypatch.setattr(
                    fair_semaphore, "_STALL_TIMEOUT_SECS", 0.01 if end == "stall" else 60.0
                )
                waiting = [
                    asyncio.create_task(_work(semaphore, Sender("c", peer), done)) for peer in peers
                ]
                await asyncio.sleep(0)
                if end == "leave":
                    for peer in peers:
                        peer.leave()
                if end == "cancel":
                    for task in waiting:
                        task.cancel()
                outcomes = await asyncio.gather(*waiting, return_exceptions=True)
                assert all(outcomes), end
                if end != "stall":
                    assert not any(isinstance(outcome, Problem) for outcome in outcomes), end
            monkeypatch.setattr(fair_semaphore, "_STALL_TIMEOUT_SECS", 60.0)
            waiting = [asyncio.create_task(_work(semaphore, Sender("c"), done)) for _ in range(2)]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    _run(scenario, max_waiting=2)

    assert done == ["c", "c"]


def test_a_client_may_not_wait_with_any_number_of_requests() -> None:
    """The next one gets 429, and another client waits as usual."""
    done: list[str] = []

    async def scenario(semaphore: FairSemaphore) -> None:
        async with semaphore.slot():
            waiting = [
                asyncio.create_task(_work(semaphore, Sender(name), done))
                for name in ("many", "many", "other")
            ]
            await asyncio.sleep(0)
            with pytest.raises(Problem) as refused:
                await _work(semaphore, Sender("many"), done)
        await asyncio.gather(*waiting)
        assert refused.value.slug == "busy"

    _run(scenario, max_waiting=2)

    assert sorted(done) == ["many", "many", "other"]

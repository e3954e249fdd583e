"""Getting the server that is wanted from a tracker that lends any."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from benchmarks._rpc_servers import RpcServers
from tests.tuner.devices.runners.registering import put
from tuner.devices.runners.rpc_leases import RpcLeases
from tuner.errors import DeviceLost

pytestmark = pytest.mark.tvm

HOST = "127.0.0.1"


@contextmanager
def lender_of(tracker: RpcServers, key: str, ports: list[int]) -> Iterator[RpcLeases]:
    """Register servers under a key, and lend them."""
    address = replace(tracker.address, key=key)
    with ExitStack() as opened:
        for port in ports:
            opened.enter_context(put(address, port))
        yield opened.enter_context(closing(RpcLeases(address)))


def test_everybody_gets_the_server_they_want(tracker_alone: RpcServers) -> None:
    """In whatever order they ask."""
    ports = [1, 2, 3, 4]
    with (
        lender_of(tracker_alone, "all", ports) as lender,
        ThreadPoolExecutor(len(ports)) as threads,
    ):
        lent = list(threads.map(lambda port: lender.acquire((HOST, port)), reversed(ports)))

    assert [(each.host, each.port) for each in lent] == [(HOST, port) for port in reversed(ports)]


def test_who_waits_for_a_server_that_is_gone_is_told(tracker_alone: RpcServers) -> None:
    """And the others wait on."""
    with lender_of(tracker_alone, "gone", []) as lender, ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(lender.acquire, (HOST, port)) for port in (1, 2)]
        time.sleep(0.3)
        lender.fail((HOST, 1), "number 1 is gone")

        with pytest.raises(DeviceLost, match="number 1 is gone"):
            waiting[0].result(timeout=10.0)
        assert not waiting[1].done()
        with put(replace(tracker_alone.address, key="gone"), 2):
            assert waiting[1].result(timeout=10.0).port == 2


def test_nobody_waits_any_more_for_a_lender_that_closes(tracker_alone: RpcServers) -> None:
    """Nor after it did."""
    with lender_of(tracker_alone, "closes", []) as lender:
        threading.Timer(0.3, lender.close).start()
        for _ in range(2):
            with pytest.raises(DeviceLost, match="the devices were released"):
                lender.acquire((HOST, 1))

"""Tests of leases of given servers from a tracker that leases any."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from tests.rpc_servers import RpcServers
from tests.tuner.devices.runners.registering import put
from tuner.devices.runners.rpc_leases import RpcLeases
from tuner.errors import DeviceLost

pytestmark = [pytest.mark.tvm, pytest.mark.slow("starts servers and a tracker for each case")]

HOST = "127.0.0.1"


@contextmanager
def leases_of(tracker: RpcServers, key: str, ports: list[int]) -> Iterator[RpcLeases]:
    """Register servers under a key, and open their leases."""
    address = replace(tracker.address, key=key)
    with ExitStack() as opened:
        for port in ports:
            opened.enter_context(put(address, port))
        yield opened.enter_context(closing(RpcLeases(address)))


def test_every_caller_gets_its_own_server(tracker_alone: RpcServers) -> None:
    """Callers get leases of their own servers, in any order of calls."""
    ports = [1, 2, 3, 4]
    with (
        leases_of(tracker_alone, "all", ports) as leases,
        ThreadPoolExecutor(len(ports)) as threads,
    ):
        acquired = list(threads.map(lambda port: leases.acquire((HOST, port)), reversed(ports)))

    assert [(lease.host, lease.port) for lease in acquired] == [
        (HOST, port) for port in reversed(ports)
    ]


def test_a_caller_that_waits_for_a_failed_server_gets_an_error(tracker_alone: RpcServers) -> None:
    """A failed server raises DeviceLost in its caller; other callers wait on."""
    with leases_of(tracker_alone, "gone", []) as leases, ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(leases.acquire, (HOST, port)) for port in (1, 2)]
        time.sleep(0.3)
        leases.fail((HOST, 1), "number 1 is offline")

        with pytest.raises(DeviceLost, match="number 1 is offline"):
            waiting[0].result(timeout=10.0)
        assert not waiting[1].done()
        with put(replace(tracker_alone.address, key="gone"), 2):
            assert waiting[1].result(timeout=10.0).port == 2


def test_no_caller_waits_for_closed_leases(tracker_alone: RpcServers) -> None:
    """Closing raises DeviceLost in callers that wait, and in later ones."""
    with leases_of(tracker_alone, "closes", []) as leases:
        threading.Timer(0.3, leases.close).start()
        for _ in range(2):
            with pytest.raises(DeviceLost, match="the devices were released"):
                leases.acquire((HOST, 1))

"""Tests of the client of a real RPC tracker."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from tests.rpc_servers import RpcServers
from tests.services import free_port
from tests.tuner.devices.runners.registering import put
from tuner.devices.runners.addresses import RpcAddress
from tuner.devices.runners.tracker import Lease, Tracker
from tuner.errors import DeviceLost

pytestmark = [pytest.mark.tvm, pytest.mark.slow("starts servers and a tracker for each case")]


@contextmanager
def waiting_for(*trackers: Tracker) -> Iterator[list[Lease]]:
    """Have threads request a lease each, in this order, and yield the leases as they come."""
    leases: list[Lease] = []

    def wait(tracker: Tracker) -> None:
        leases.append(tracker.request())

    with ThreadPoolExecutor(len(trackers)) as threads:
        for tracker in trackers:
            threads.submit(wait, tracker)
            time.sleep(0.3)
        yield leases


def test_servers_are_listed_by_key(servers: RpcServers) -> None:
    """The servers of other keys are not listed."""
    with closing(Tracker(servers.address)) as tracker:
        servers_of_key = tracker.servers()
    with closing(Tracker(replace(servers.address, key="other"))) as tracker:
        others = tracker.servers()

    assert len(servers_of_key) == len(set(servers_of_key)) == 2
    assert {host for host, _ in servers_of_key} == {"127.0.0.1"}
    assert others == []


def test_a_higher_priority_is_served_first(tracker_alone: RpcServers) -> None:
    """A later request of higher priority is served first."""
    address = replace(tracker_alone.address, key="queue")
    low = Tracker(replace(address, priority=1))
    high = Tracker(replace(address, priority=5))
    with closing(low), closing(high), waiting_for(low, high) as leases, put(address, 1001):
        while not leases:
            time.sleep(0.01)
        threading.Timer(0.2, low.close).start()

    assert leases == [Lease("127.0.0.1", 1001, "queue:1001")]
    assert high.servers() == []
    high.close()


def test_closing_wakes_a_waiting_request(tracker_alone: RpcServers) -> None:
    """Closing the tracker in another thread raises DeviceLost in a waiting request."""
    tracker = Tracker(tracker_alone.address)
    threading.Timer(0.3, tracker.close).start()

    with pytest.raises(DeviceLost, match=r"cannot reach the RPC tracker at 127\.0\.0\.1:\d+"):
        tracker.request()


def test_a_tracker_that_is_not_there_is_a_lost_device() -> None:
    """An address without a listener raises DeviceLost."""
    address = RpcAddress("127.0.0.1", free_port(), "k")

    with pytest.raises(DeviceLost, match="Connection refused"):
        Tracker(address).servers()


def test_a_listener_that_is_not_a_tracker_is_a_lost_device() -> None:
    """A listener with another protocol raises DeviceLost."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            connection.sendall(b"HTTP/1.1 400")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        address = RpcAddress("127.0.0.1", listener.getsockname()[1], "k")
        with pytest.raises(DeviceLost, match="it is not an RPC tracker"):
            Tracker(address).servers()
        thread.join()

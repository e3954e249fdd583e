"""Talking to a real RPC tracker."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from benchmarks._rpc_servers import RpcServers, free_port
from tests.tuner.devices.runners.registering import put
from tuner.devices.runners.addresses import RpcAddress
from tuner.devices.runners.tracker import Lease, Tracker
from tuner.errors import DeviceLost

pytestmark = pytest.mark.tvm


@contextmanager
def waiting_for(*trackers: Tracker) -> Iterator[list[Lease]]:
    """Have threads wait for a server each, in this order; what they are lent comes in order."""
    lent: list[Lease] = []

    def wait(tracker: Tracker) -> None:
        lent.append(tracker.request())

    with ThreadPoolExecutor(len(trackers)) as threads:
        for tracker in trackers:
            threads.submit(wait, tracker)
            time.sleep(0.3)
        yield lent


def test_servers_are_listed_by_key(servers: RpcServers) -> None:
    """Those of another key are not ours."""
    with closing(Tracker(servers.address)) as tracker:
        found = tracker.servers()
    with closing(Tracker(replace(servers.address, key="other"))) as tracker:
        others = tracker.servers()

    assert len(found) == len(set(found)) == 2
    assert {host for host, _ in found} == {"127.0.0.1"}
    assert others == []


def test_a_higher_priority_is_served_first(tracker_alone: RpcServers) -> None:
    """Though it came later."""
    address = replace(tracker_alone.address, key="queue")
    low = Tracker(replace(address, priority=1))
    high = Tracker(replace(address, priority=5))
    with closing(low), closing(high), waiting_for(low, high) as lent, put(address, 1001):
        while not lent:
            time.sleep(0.01)
        threading.Timer(0.2, low.close).start()

    assert lent == [Lease("127.0.0.1", 1001, "queue:1001")]
    assert high.servers() == []
    high.close()


def test_hanging_up_wakes_who_waits(tracker_alone: RpcServers) -> None:
    """From another thread, and with the error of a device that is gone."""
    tracker = Tracker(tracker_alone.address)
    threading.Timer(0.3, tracker.close).start()

    with pytest.raises(DeviceLost, match=r"cannot reach the RPC tracker at 127\.0\.0\.1:\d+"):
        tracker.request()


def test_a_tracker_that_is_not_there_is_a_lost_device() -> None:
    """Nobody listens."""
    address = RpcAddress("127.0.0.1", free_port(), "k")

    with pytest.raises(DeviceLost, match="Connection refused"):
        Tracker(address).servers()


def test_what_is_no_tracker_is_a_lost_device() -> None:
    """It listens, but says something else."""
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

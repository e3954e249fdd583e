"""Matching of a tracker's leases, which are of any server of a key, to the runners of servers."""

import threading
import time
from collections.abc import Callable

from tuner.devices.runners.addresses import RpcAddress
from tuner.devices.runners.tracker import Lease, Server, Tracker, release
from tuner.errors import DeviceLost

# A server that was leased before its runner needs it is released after this; it waits for four
# seconds.
_SPARE_SECS = 0.5
# Pause after the lease of a server that no runner waits for, so that another one comes to the
# head of the queue.
_PAUSE_SECS = 0.1


class RpcLeases:
    """Leases of the servers of one key, requested while a runner waits for one; thread-safe.

    One request is open at a time, and the tracker queues requests by priority, then by age: a
    client of many devices and one of a few take turns.
    """

    def __init__(self, address: RpcAddress) -> None:
        self._tracker = Tracker(address)
        self._changed = threading.Condition()
        self._outcomes: dict[Server, Lease | DeviceLost | None] = {}
        self._spare: dict[Server, Lease] = {}
        self._is_closed = False
        self._is_requesting = False
        self._thread = threading.Thread(target=self._request_leases, name="rpc-leases", daemon=True)
        self._thread.start()

    def acquire(self, server: Server) -> Lease:
        """Wait without limit for the lease of a server; one caller at a time for each server.

        Raises:
            DeviceLost: If the tracker cannot be reached, or :meth:`fail` was called.
        """
        with self._changed:
            if self._is_closed:
                raise DeviceLost("the devices were released")
            if server in self._spare:
                return self._spare.pop(server)
            self._outcomes[server] = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._outcomes[server] is not None)
            outcome = self._outcomes.pop(server)
        if isinstance(outcome, Lease):
            return outcome
        raise outcome or DeviceLost(f"{server} is offline")

    def fail(self, server: Server, reason: str) -> None:
        """Raise DeviceLost in the caller that waits for a server."""
        with self._changed:
            self._fail(lambda waiting: waiting == server, DeviceLost(reason))

    def close(self) -> None:
        """Stop requesting; callers that wait get DeviceLost."""
        with self._changed:
            self._is_closed = True
            self._fail(lambda _: True, DeviceLost("the devices were released"))
        while self._thread.is_alive():
            self._tracker.close()  # again and again: it may be about to connect
            self._thread.join(0.1)
        self._tracker.close()
        for lease in list(self._spare.values()):
            self._release(lease)

    def _fail(self, concerns: Callable[[Server], bool], error: DeviceLost) -> None:
        for server, outcome in self._outcomes.items():
            if outcome is None and concerns(server):
                self._outcomes[server] = error
        if self._is_requesting and not self._is_awaited():
            self._is_requesting = False
            self._tracker.close()  # a lease that no runner uses keeps a server idle for seconds
        self._changed.notify_all()

    def _is_awaited(self) -> bool:
        return any(outcome is None for outcome in self._outcomes.values())

    def _request_leases(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._is_awaited())
                if self._is_closed:
                    return
                self._is_requesting = True
            try:
                lease = self._tracker.request()
            except DeviceLost as error:
                # Raise an error of the tracker in all callers, unless closing it caused the error.
                with self._changed:
                    if self._is_requesting:
                        self._fail(lambda _: True, error)
                    self._is_requesting = False
            else:
                if not self._hand_over(lease):
                    time.sleep(_PAUSE_SECS)

    def _hand_over(self, lease: Lease) -> bool:
        """Give a lease to the caller that waits for its server; False if no caller does."""
        server = (lease.host, lease.port)
        with self._changed:
            self._is_requesting = False
            if server in self._outcomes and self._outcomes[server] is None:
                self._outcomes[server] = lease
                self._changed.notify_all()
                return True
            self._spare[server] = lease
        timer = threading.Timer(_SPARE_SECS, self._release, (lease,))
        timer.daemon = True
        timer.start()
        return False

    def _release(self, lease: Lease) -> None:
        with self._changed:
            is_spare = self._spare.get((lease.host, lease.port)) is lease
            if is_spare:
                del self._spare[lease.host, lease.port]
        if is_spare:
            release(lease)

"""Which of us gets which server: a tracker lends any of a key, and a runner wants its own."""

import threading
import time
from collections.abc import Callable

from tuner.devices.runners.addresses import RpcAddress
from tuner.devices.runners.tracker import Lent, Server, Tracker, give_back
from tuner.errors import DeviceLost

# A server that was lent before its runner wants it is given back then; it waits four seconds.
_SPARE_SECS = 0.5
# After a server that nobody here wanted, so that another one comes to the head of the queue.
_PAUSE_SECS = 0.1


class RpcLeases:
    """Asks the tracker as long as anybody here wants a server, for one at a time; thread-safe.

    The tracker's queue is by priority, then by who came first: a client of many devices and one
    of a few take turns.
    """

    def __init__(self, address: RpcAddress) -> None:
        self._tracker = Tracker(address)
        self._changed = threading.Condition()
        self._wanted: dict[Server, Lent | DeviceLost | None] = {}
        self._spare: dict[Server, Lent] = {}
        self._is_closed = False
        self._is_asking = False
        self._thread = threading.Thread(target=self._ask, name="rpc-lender", daemon=True)
        self._thread.start()

    def lend(self, server: Server) -> Lent:
        """Wait for a server, for as long as it takes; nobody else waits for the same one.

        Raises:
            DeviceLost: If the tracker is gone, or somebody said that the server is.
        """
        with self._changed:
            if self._is_closed:
                raise DeviceLost("the devices were let go")
            if server in self._spare:
                return self._spare.pop(server)
            self._wanted[server] = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._wanted[server] is not None)
            outcome = self._wanted.pop(server)
        if isinstance(outcome, Lent):
            return outcome
        raise outcome or DeviceLost(f"{server} is gone")

    def give_up(self, server: Server, reason: str) -> None:
        """Have whoever waits for a server get DeviceLost."""
        with self._changed:
            self._fail(lambda each: each == server, DeviceLost(reason))

    def close(self) -> None:
        """Stop asking; whoever waits gets DeviceLost."""
        with self._changed:
            self._is_closed = True
            self._fail(lambda _: True, DeviceLost("the devices were let go"))
        while self._thread.is_alive():
            self._tracker.close()  # again and again: it may be about to connect
            self._thread.join(0.1)
        self._tracker.close()
        for lent in list(self._spare.values()):
            self._give_back(lent)

    def _fail(self, concerns: Callable[[Server], bool], error: DeviceLost) -> None:
        for server, outcome in self._wanted.items():
            if outcome is None and concerns(server):
                self._wanted[server] = error
        if self._is_asking and not self._is_anybody_waiting():
            self._is_asking = False
            self._tracker.close()  # a server that is lent to nobody stands idle for seconds
        self._changed.notify_all()

    def _is_anybody_waiting(self) -> bool:
        return any(outcome is None for outcome in self._wanted.values())

    def _ask(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._is_anybody_waiting())
                if self._is_closed:
                    return
                self._is_asking = True
            try:
                lent = self._tracker.request()
            except DeviceLost as error:
                self._look_into(error)
            else:
                if not self._hand_over(lent):
                    time.sleep(_PAUSE_SECS)

    def _look_into(self, error: DeviceLost) -> None:
        """Tell who waits that the tracker is gone, unless we hung up ourselves."""
        with self._changed:
            if self._is_asking:
                self._fail(lambda _: True, error)
            self._is_asking = False

    def _hand_over(self, lent: Lent) -> bool:
        """Give a server to who wants it; whether anybody does."""
        server = (lent.host, lent.port)
        with self._changed:
            self._is_asking = False
            if server in self._wanted and self._wanted[server] is None:
                self._wanted[server] = lent
                self._changed.notify_all()
                return True
            self._spare[server] = lent
        timer = threading.Timer(_SPARE_SECS, self._give_back, (lent,))
        timer.daemon = True
        timer.start()
        return False

    def _give_back(self, lent: Lent) -> None:
        with self._changed:
            is_spare = self._spare.get((lent.host, lent.port)) is lent
            if is_spare:
                del self._spare[lent.host, lent.port]
        if is_spare:
            give_back(lent)

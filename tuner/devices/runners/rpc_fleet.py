"""The devices behind RPC trackers, as they come and go: one runner for every server of a key."""

import logging
import threading
import time
from collections.abc import Sequence

from tuner.devices.runners.addresses import RpcAddress, parse_addresses
from tuner.devices.runners.base import Runner
from tuner.devices.runners.rpc import RpcRunner
from tuner.devices.runners.rpc_leases import RpcLeases
from tuner.devices.runners.tracker import Server, Tracker
from tuner.errors import DeviceLost
from tuner.settings import Settings

_POLL_SECS = 2.0
# The process of a device is kept warm for so long while it is away.
_FORGET_SECS = 60.0
_LOG = logging.getLogger(__name__)


class RpcFleet:
    """Runners for the devices that the setting ``rpc`` names; trackers are asked now and then.

    Args:
        settings: Name the addresses and the engine.
        poll_secs: How long between two looks.

    Raises:
        RequestError: If the setting is malformed.
        DeviceLost: If a tracker cannot be reached at all.
    """

    def __init__(self, settings: Settings, poll_secs: float = _POLL_SECS) -> None:
        addresses = parse_addresses(settings.rpc or "")
        self._kinds = [_Kind(settings, address) for address in addresses]
        try:
            for kind in self._kinds:
                kind.look()
        except BaseException:  # a service tries again, and again
            for kind in self._kinds:
                kind.close()
            raise
        self._poll_secs = poll_secs
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="rpc-trackers", daemon=True)
        self._poller.start()

    @property
    def runners(self) -> Sequence[Runner]:
        """The devices that are there."""
        return [runner for kind in self._kinds for runner in kind.runners]

    def close(self) -> None:
        """Let go of all devices."""
        self._closing.set()
        self._poller.join()
        for kind in self._kinds:
            kind.close()

    def _poll(self) -> None:
        while not self._closing.wait(self._poll_secs):
            for kind in self._kinds:
                kind.look_again()


class _Kind:
    """The runners of one key; their processes stay warm for a while when a device is away."""

    def __init__(self, settings: Settings, address: RpcAddress) -> None:
        self._settings = settings
        self._address = address
        self._tracker = Tracker(address)
        self._lender = RpcLeases(address)
        self._n_servers = 0
        self._runners: dict[Server, RpcRunner] = {}
        self._seen: dict[Server, float] = {}

    @property
    def runners(self) -> list[RpcRunner]:
        """Those whose server is there."""
        return [each for each in list(self._runners.values()) if each.is_there]

    def look(self) -> None:
        """Ask the tracker which servers there are, and have a runner for each.

        Raises:
            DeviceLost: If there is no tracker.
        """
        self._adapt(self._tracker.servers())

    def look_again(self) -> None:
        """Look; without a tracker there is no device."""
        try:
            self.look()
        except DeviceLost as error:
            if self._n_servers:
                _LOG.warning("%s", error)
            self._adapt([])

    def close(self) -> None:
        """Let go of the devices."""
        self._tracker.close()
        for runner in self._runners.values():
            runner.close()
        self._lender.close()

    def _adapt(self, servers: list[Server]) -> None:
        if len(servers) != self._n_servers:
            where = self._address.tracker
            _LOG.info("%d devices under %r at %s", len(servers), self._address.key, where)
        self._n_servers = len(servers)
        now = time.monotonic()
        for server in servers:
            self._seen[server] = now
            if server not in self._runners:
                self._runners[server] = self._start(server)
            self._runners[server].is_there = True
        for server in set(self._runners) - set(servers):
            self._let_go(server, now)

    def _start(self, server: Server) -> RpcRunner:
        return RpcRunner(self._settings, self._lender, self._address, server)

    def _let_go(self, server: Server, now: float) -> None:
        """Have a runner leave whose server is away, and forget it after a while."""
        runner = self._runners[server]
        runner.leave()
        if runner.is_idle and now - self._seen[server] > _FORGET_SECS:
            del self._runners[server]
            runner.close()

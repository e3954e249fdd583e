"""The devices behind RPC trackers, as they come and go: one runner for every server of a key."""

import logging
import threading
from collections.abc import Sequence

from tuner.config import Settings
from tuner.errors import DeviceLost
from tuner.runners.addresses import RpcAddress, parse_addresses
from tuner.runners.base import Runner
from tuner.runners.rpc import RpcRunner
from tuner.runners.tracker import Tracker

_POLL_SECS = 2.0
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
        for kind in self._kinds:
            kind.look()
        self._poll_secs = poll_secs
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="rpc-trackers", daemon=True)
        self._poller.start()

    @property
    def runners(self) -> Sequence[Runner]:
        """The devices that are there."""
        return [runner for kind in self._kinds for runner in kind.runners if runner.is_there]

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
    """The runners of one key; their processes stay warm while a device is away."""

    def __init__(self, settings: Settings, address: RpcAddress) -> None:
        self._settings = settings
        self._address = address
        self._tracker = Tracker(address)
        self._n_servers = 0
        self.runners: list[RpcRunner] = []

    def look(self) -> None:
        """Ask the tracker how many servers there are, and have as many runners.

        Raises:
            DeviceLost: If there is no tracker.
        """
        self._adapt(len(self._tracker.servers()))

    def look_again(self) -> None:
        """Look; without a tracker there is no device."""
        try:
            self.look()
        except DeviceLost as error:
            if self._n_servers:
                _LOG.warning("%s", error)
            self._adapt(0)

    def close(self) -> None:
        """Let go of the devices."""
        self._tracker.close()
        for runner in self.runners:
            runner.close()

    def _adapt(self, n_servers: int) -> None:
        if n_servers != self._n_servers:
            where = self._address.tracker
            _LOG.info("%d devices under %r at %s", n_servers, self._address.key, where)
        self._n_servers = n_servers
        # Those that work stay where there are fewer, so that no call is given up for nothing.
        by_use = sorted(self.runners, key=lambda each: (not each.is_there, each.is_idle))
        for runner in by_use[:n_servers]:
            runner.is_there = True
        for runner in by_use[n_servers:]:
            runner.leave()
        for number in range(len(self.runners) + 1, n_servers + 1):
            self.runners = [*self.runners, RpcRunner(self._settings, self._address, number)]

"""Fleet of the devices behind RPC trackers: one runner for every server of a key."""

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

_POLL_INTERVAL_SECS = 2.0
# Time for which the process of a device is kept warm while the device is offline.
_KEEP_WARM_SECS = 60.0
_LOG = logging.getLogger(__name__)


class RpcFleet:
    """Runners for the devices in the setting ``rpc``; a thread polls the trackers.

    Args:
        settings: Settings that name the addresses and the engine.
        poll_secs: Interval between two polls.

    Raises:
        RequestError: If the setting is malformed.
        DeviceLost: If a tracker cannot be reached at all.
    """

    def __init__(self, settings: Settings, poll_secs: float = _POLL_INTERVAL_SECS) -> None:
        addresses = parse_addresses(settings.rpc or "")
        self._kinds = [_DeviceKind(settings, address) for address in addresses]
        try:
            for kind in self._kinds:
                kind.update()
        except BaseException:  # a service opens fleets again and again
            for kind in self._kinds:
                kind.close()
            raise
        self._poll_secs = poll_secs
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="rpc-trackers", daemon=True)
        self._poller.start()

    @property
    def runners(self) -> Sequence[Runner]:
        """Runners whose servers are online."""
        return [runner for kind in self._kinds for runner in kind.runners]

    def close(self) -> None:
        """Release all devices."""
        self._closing.set()
        self._poller.join()
        for kind in self._kinds:
            kind.close()

    def _poll(self) -> None:
        while not self._closing.wait(self._poll_secs):
            for kind in self._kinds:
                kind.update_or_go_offline()


class _DeviceKind:
    """Runners of one key; their processes stay warm for a while when a device is offline."""

    def __init__(self, settings: Settings, address: RpcAddress) -> None:
        self._settings = settings
        self._address = address
        self._tracker = Tracker(address)
        self._leases = RpcLeases(address)
        self._n_servers = 0
        self._runners: dict[Server, RpcRunner] = {}
        self._last_seen: dict[Server, float] = {}

    @property
    def runners(self) -> list[RpcRunner]:
        """Runners whose server is online."""
        return [runner for runner in list(self._runners.values()) if runner.is_online]

    def update(self) -> None:
        """Have a runner for each server that is registered at the tracker.

        Raises:
            DeviceLost: If the tracker cannot be reached.
        """
        self._set_servers(self._tracker.servers())

    def update_or_go_offline(self) -> None:
        """Update the runners; without a tracker all go offline."""
        try:
            self.update()
        except DeviceLost as error:
            if self._n_servers:
                _LOG.warning("%s", error)
            self._set_servers([])

    def close(self) -> None:
        """Release the devices."""
        self._tracker.close()
        for runner in self._runners.values():
            runner.close()
        self._leases.close()

    def _set_servers(self, servers: list[Server]) -> None:
        if len(servers) != self._n_servers:
            tracker = self._address.tracker
            _LOG.info("%d devices under %r at %s", len(servers), self._address.key, tracker)
        self._n_servers = len(servers)
        now = time.monotonic()
        for server in servers:
            self._last_seen[server] = now
            if server not in self._runners:
                self._runners[server] = RpcRunner(
                    self._settings, self._leases, self._address, server
                )
            self._runners[server].is_online = True
        for server in set(self._runners) - set(servers):
            # Take the runner of a server that left offline, and close it after a while.
            runner = self._runners[server]
            runner.go_offline()
            if runner.is_idle and now - self._last_seen[server] > _KEEP_WARM_SECS:
                del self._runners[server]
                runner.close()

"""Devices for which calls wait, read once for all requests that wait for some."""

import time
from dataclasses import dataclass, field

from api.documents.caching import SingleFlight
from api.load.fair_semaphore import SENDER, Sender
from api.load.transactions import Transactions
from records.service import remote_devices

#: Interval between two looks at the database.
LOOK_INTERVAL_SECS = 0.05


@dataclass
class WaitingCalls:
    """Looks which devices have calls, once for all requests that wait for some."""

    reads: Transactions
    _names: frozenset[str] = frozenset()
    _looked: float = -1.0
    _looks: SingleFlight[None] = field(default_factory=SingleFlight)

    async def has(self, name: str) -> bool:
        """Return whether calls wait for a device, as of the last look."""
        if time.monotonic() - self._looked >= LOOK_INTERVAL_SECS:
            await self._looks.join("waiting", self._look)
        return name in self._names

    async def _look(self) -> None:
        SENDER.set(Sender("remote devices"))
        self._names = await self.reads.run(remote_devices.waiting)
        self._looked = time.monotonic()

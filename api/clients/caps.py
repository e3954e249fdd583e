"""Caps: what one client, and all clients together, may hold at a time."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from api.errors import Problem


@dataclass(eq=False)
class Cap:
    """Counts what clients hold.

    Attributes:
        what: Name of what is held, in the plural.
        per_client: Maximum for one client.
        total: Maximum for all.
        retry_after_secs: Time after which a refused client may try again.
    """

    what: str
    per_client: int
    total: int
    retry_after_secs: int = 5
    _held: Counter[str] = field(default_factory=Counter)

    def has_room(self, client: str) -> bool:
        """Return whether a client may hold one more."""
        return self._held[client] < self.per_client and self._held.total() < self.total

    def check(self, client: str) -> None:
        """Check that a client may hold one more.

        Raises:
            Problem: If it may not.
        """
        if not self.has_room(client):
            headers = {"retry-after": str(self.retry_after_secs)}
            raise Problem("busy", f"{client} or others have too many {self.what}", headers=headers)

    @contextmanager
    def taken(self, client: str) -> Iterator[None]:
        """Count one during the block.

        Raises:
            Problem: If there is no room for it.
        """
        self.check(client)
        self._held[client] += 1
        try:
            yield
        finally:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]

"""A queue that serves its clients in turn."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Client = TypeVar("Client", bound=Hashable)
Item = TypeVar("Item", bound=Hashable)
# How much younger an item of a hasty connection counts than it is.
_MAX_YIELD_SECS = 5.0


@dataclass(eq=False)
class _Line(Generic[Item]):
    """The items of a client with the times by which they rank, each kind in its order."""

    calm: dict[Item, float] = field(default_factory=dict)
    hasty: dict[Item, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.calm) + len(self.hasty)

    def pop(self) -> Item:
        """Remove the first item, and return it."""
        heads = [(next(iter(kind.items())), kind) for kind in (self.calm, self.hasty) if kind]
        (item, _), kind = min(heads, key=lambda head: head[0][1])
        del kind[item]
        return item


@dataclass(eq=False)
class FairQueue(Generic[Client, Item]):
    """Items of clients, which have turns; of one client, the item that came first goes first.

    Items of connections that asked again at once count as some seconds younger.
    """

    _lines: dict[Client, _Line[Item]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def n_of(self, client: Client) -> int:
        """Return the number of items of a client."""
        return len(self._lines.get(client, ()))

    def add(self, client: Client, item: Item, arrived: float, *, is_hasty: bool) -> None:
        """Add an item; times of arrival do not decrease."""
        line = self._lines.setdefault(client, _Line())
        if is_hasty:
            line.hasty[item] = arrived + _MAX_YIELD_SECS
        else:
            line.calm[item] = arrived

    def discard(self, client: Client, item: Item) -> None:
        """Remove an item, unless it had its turn."""
        if (line := self._lines.get(client)) is not None:
            line.calm.pop(item, None)
            line.hasty.pop(item, None)
            if not line:
                del self._lines[client]

    def pop(self) -> Item:
        """Remove the first item of the client whose turn it is.

        Raises:
            StopIteration: If the queue is empty.
        """
        client = next(iter(self._lines))
        line = self._lines.pop(client)
        item = line.pop()
        if line:
            self._lines[client] = line
        return item

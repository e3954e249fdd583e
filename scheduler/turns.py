"""Turns of owners: those who wait are served in turn, however much each of them asks for."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


class Turns:
    """Order of the owners of a queue: the one who was served longest ago comes first.

    It is kept in memory; a new process serves the oldest item first.
    """

    def __init__(self) -> None:
        self._served: dict[Hashable, int] = {}
        self._n_served = 0

    def ordered(self, items: Iterable[Item], owner_of: Callable[[Item], Hashable]) -> list[Item]:
        """Return items, sorted by the turn of their owners; equal ones keep their order."""
        return sorted(items, key=lambda item: self._served.get(owner_of(item), 0))

    def serve(self, owner: Hashable) -> None:
        """Note that an owner is served now."""
        self._n_served += 1
        self._served[owner] = self._n_served

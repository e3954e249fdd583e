"""Tables that are sorted by the address of their page, so that sorting needs no script."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

Row = TypeVar("Row")
Keys = Mapping[str, Callable[[Any], Any]]
# What a reader wants to see first: small numbers and names, or large numbers.
_RISING = ("id", "name", "task", "latency", "workload", "kind")


@dataclass(frozen=True)
class Sorting:
    """How a table is sorted, and the links that sort it otherwise.

    Attributes:
        key: Name of the column.
        descending: Which way.
        others: Parameters of the address that stay.
    """

    key: str
    descending: bool
    others: tuple[tuple[str, str], ...] = ()

    def link(self, key: str) -> str:
        """Return the address that sorts by a column; the other way if it is sorted by it."""
        descending = not self.descending if key == self.key else key not in _RISING
        return query([*self.others, ("sort", f"-{key}" if descending else key)])


def read_sorting(
    text: str, keys: Keys, default: str, others: Mapping[str, str] | None = None
) -> Sorting:
    """Read ``-share`` or ``name``; anything that is no column sorts by the default."""
    chosen = text if text.removeprefix("-") in keys else default
    rest = tuple((others or {}).items())
    return Sorting(chosen.removeprefix("-"), chosen.startswith("-"), rest)


def sort_rows(rows: Sequence[Row], sorting: Sorting, keys: Keys) -> list[Row]:
    """Sort rows by a column; those without a value come last either way, ties stay in order."""
    key = keys[sorting.key]
    known = [row for row in rows if key(row) is not None]
    unknown = [row for row in rows if key(row) is None]
    return sorted(known, key=key, reverse=sorting.descending) + unknown


def query(parameters: Sequence[tuple[str, Any]]) -> str:
    """Return the query of an address, without those parameters that say nothing."""
    said = [(name, value) for name, value in parameters if value not in (None, "")]
    return f"?{urlencode(said)}" if said else "?"

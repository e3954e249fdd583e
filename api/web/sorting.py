"""Sorting of tables by the address of their page, which needs no script."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

Row = TypeVar("Row")
Keys = Mapping[str, Callable[[Any], Any]]
# Columns whose smallest value comes first; others start with the largest.
_ASCENDING = ("id", "name", "task", "latency", "latency_ms", "workload", "kind")


@dataclass(frozen=True)
class Sorting:
    """The order of a table, and the links that change it.

    Attributes:
        key: Name of the column.
        descending: True for the largest value first.
        others: Other parameters of the address.
    """

    key: str
    descending: bool
    others: tuple[tuple[str, str], ...] = ()

    def link(self, key: str) -> str:
        """Return the address that sorts by a column, reversed if it is the current one."""
        descending = not self.descending if key == self.key else key not in _ASCENDING
        return query([*self.others, ("sort", f"-{key}" if descending else key)])


def read_sorting(
    text: str, keys: Keys, default: str, others: Mapping[str, str] | None = None
) -> Sorting:
    """Read an order such as ``-share`` or ``name``; other texts give the default."""
    chosen = text if text.removeprefix("-") in keys else default
    rest = tuple((others or {}).items())
    return Sorting(chosen.removeprefix("-"), chosen.startswith("-"), rest)


def sort_rows(rows: Sequence[Row], sorting: Sorting, keys: Keys) -> list[Row]:
    """Sort rows by a column; rows without a value come last, and ties keep their order."""
    key = keys[sorting.key]
    with_value = [row for row in rows if key(row) is not None]
    without = [row for row in rows if key(row) is None]
    return sorted(with_value, key=key, reverse=sorting.descending) + without


def query(parameters: Sequence[tuple[str, Any]]) -> str:
    """Return the query of an address, without empty parameters."""
    pairs = [(name, value) for name, value in parameters if value not in (None, "")]
    return f"?{urlencode(pairs)}" if pairs else "?"

"""Tables as wide as the terminal: columns are left out and names shortened, numbers never are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.table import Table
from rich.text import Text

from tuner.formatting import DASH, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions

_GAP = 2
_ELLIPSIS = "…"
# Width from which a column is left out rather than a name or a sentence made narrower, and the
# width down to which they go where no column is left to leave out.
_MIN_WIDTH = {"name": 20, "prose": 24}
_SMALLEST_WIDTH = 8
_BLANK = ("", DASH)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Heading; may have several lines.
        kind: A number is aligned to the right; a name is shortened in its middle where space is
            scarce, and a sentence (``prose``) is wrapped.
        rank: Columns of higher rank are left out first; one of rank 0 never is.
    """

    title: str
    kind: Literal["text", "number", "name", "prose"] = "text"
    rank: int = 0


class Grid:
    """Rows under columns, laid out for the width of the console that prints them."""

    def __init__(self, *columns: Column, title: str = "") -> None:
        self._columns = columns
        self._title = title
        self.rows: list[tuple[tuple[Text, ...], str]] = []

    def add(self, *cells: str | Text, style: str = "") -> None:
        """Append a row; text is printed as it is, without markup."""
        texts = (cell if isinstance(cell, Text) else Text(cell) for cell in cells)
        self.rows.append((tuple(texts), style))

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "Iterator[Text | Table]":
        """Yield the title and the table for the width that the console offers."""
        del console
        if self._title:
            yield Text(printable(self._title), "italic")
        kept, widths = self._fit(options.max_width)
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        for index in kept:
            column = self._columns[index]
            is_prose = column.kind == "prose"
            table.add_column(
                column.title,
                justify="right" if column.kind == "number" else "left",
                no_wrap=not is_prose,
                width=widths[index] if is_prose else None,
                overflow="fold" if is_prose else "ellipsis",
            )
        for cells, style in self.rows:
            row = [
                _shortened(cells[index], widths[index])
                if self._columns[index].kind == "name"
                else cells[index]
                for index in kept
            ]
            table.add_row(*row, style=style)
        yield table

    def _fit(self, max_width: int) -> tuple[list[int], list[int]]:
        """Return the columns that fit, in their order, and the width of each."""
        widths = [self._natural_width(index) for index in range(len(self._columns))]
        least = [
            min(width, _MIN_WIDTH.get(column.kind, width))
            for width, column in zip(widths, self._columns, strict=True)
        ]
        kept = list(range(len(widths)))

        def spare() -> int:
            return max_width - sum(least[index] + _GAP for index in kept) + _GAP

        for index in sorted(kept, key=self._importance, reverse=True):
            if self._columns[index].rank and spare() < 0:
                kept.remove(index)
        flexible = [index for index in kept if self._columns[index].kind in _MIN_WIDTH]
        if spare() < 0:
            for index in flexible:
                least[index] = min(widths[index], _SMALLEST_WIDTH)
        # Names come first: sentences can be wrapped.
        for index in sorted(flexible, key=lambda index: self._columns[index].kind):
            least[index] += min(widths[index] - least[index], max(spare(), 0))
        return kept, least

    def _natural_width(self, index: int) -> int:
        title = max(map(len, self._columns[index].title.split("\n")))
        return max([title, *(_width(cells[index]) for cells, _ in self.rows)])

    def _importance(self, index: int) -> tuple[bool, int, int]:
        """Return the key by which columns are left out, largest first: those without values."""
        is_blank = all(cells[index].plain in _BLANK for cells, _ in self.rows)
        return is_blank, self._columns[index].rank, index


def _width(text: Text) -> int:
    """Return the number of terminal cells of the longest line."""
    return max((line.cell_len for line in text.split("\n")), default=0)


def _shortened(name: Text, width: int) -> Text:
    """Cut the middle out of a name: the operators begin it, and what tells it apart ends it."""
    if name.cell_len <= width:
        return name
    head = (width - 1) // 2
    return Text.assemble(name[:head], _ELLIPSIS, name[len(name) - (width - 1 - head) :])

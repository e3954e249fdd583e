"""Results as short texts, as HTML tables for notebooks, and as data frames."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.errors import RequestError, install_command
from tuner.reporting import task_columns
from tuner.schemas import TaskView

if TYPE_CHECKING:
    from pandas import DataFrame

Row = TypeVar("Row")
Cells = Sequence[Sequence[str]]
_MAX_ROWS = 30
_MAX_CHARS = 40
_NUMBER = '<td style="text-align: right">'


class Rows(list[Row]):
    """List of rows of one class that a notebook shows as a table."""

    def to_pandas(self) -> "DataFrame":
        """Return a data frame with a row for each item and a column for each field.

        Times are in seconds.

        Raises:
            RequestError: If pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise RequestError(
                f"a data frame needs the extra pandas: {install_command('pandas')}"
            ) from error
        names = _names(self)
        return DataFrame([[getattr(row, name) for name in names] for row in self], columns=names)

    def __repr__(self) -> str:
        kind = f" of {type(self[0]).__name__}" if self else ""
        return f"<{len(self)} {'row' if len(self) == 1 else 'rows'}{kind}>"

    def _repr_html_(self) -> str:
        if self and isinstance(self[0], TaskView):
            tasks = [row for row in self if isinstance(row, TaskView)]
            return table(task_columns.TITLES, task_columns.rows(tasks))
        # What no row has is left out, and so is what takes more than a cell.
        names = [name for name in _names(self) if any(_is_short(getattr(r, name)) for r in self)]
        return table(names, [[_cell(getattr(row, name)) for name in names] for row in self])


class Shown:
    """Base of results that print as one line, and that a notebook shows with a table.

    A dataclass needs ``repr=False``, or its own text wins.
    """

    def summary(self) -> str:
        """Return the result in one line."""
        raise NotImplementedError

    def _table(self) -> str:
        """Return the HTML table below the line; empty without one."""
        return ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p>{self._table()}"


def table(titles: Sequence[str], rows: Cells) -> str:
    """Return rows as an HTML table; the last of many are left out."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        f"<tr>{''.join(_column(cell) + escape(cell) + '</td>' for cell in row)}</tr>"
        for row in rows[:_MAX_ROWS]
    )
    n_more = len(rows) - _MAX_ROWS
    more = f"<p>and {n_more} more</p>" if n_more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _column(cell: str) -> str:
    return _NUMBER if cell[:1].isdigit() or cell[:1] == "-" else '<td style="text-align: left">'


def _names(rows: Iterable[Any]) -> list[str]:
    """Return the names of the fields of rows, which are dataclasses or named tuples."""
    first = next(iter(rows), None)
    if first is None:
        return []
    if is_dataclass(first):
        return [field.name for field in fields(first)]
    return list(first._fields)


def _is_short(value: object) -> bool:
    is_plain = isinstance(value, str | float) and len(str(value)) <= _MAX_CHARS
    return value != "" and (is_plain or hasattr(value, "isoformat") or isinstance(value, int))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"

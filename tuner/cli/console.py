"""Output of commands: results on stdout, everything else on stderr."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

# Wide enough that no table is fitted to it.
_PIPE_WIDTH = 10_000

Detail = Literal["quiet", "normal", "verbose"]


# Characters that command a terminal (C0 and C1 without tab and newline) or reorder a line.
_CONTROLS = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
    - {ord("\t"), ord("\n")}
)


def without_controls(text: str) -> str:
    """Remove what could command a terminal from a text of a server, a database or a model."""
    return text.translate(_CONTROLS)


_chosen: dict[str, Detail] = {}


def choose_detail(detail: Detail) -> None:
    """Choose what this process prints on stderr beside errors: nothing, progress, or logs too."""
    _chosen["detail"] = detail
    if detail == "verbose":
        from tuner.service import logs

        logs.set_up("debug", "text")


def detail() -> Detail:
    """Return what was chosen."""
    return _chosen.get("detail", "normal")


def stdout_console() -> "Console":
    """Return a console for results; in a pipe, tables have their natural width, or COLUMNS."""
    columns = os.environ.get("COLUMNS", "")
    is_chosen = columns.isdigit() and columns.strip("0")
    if not (is_chosen or sys.stdout.isatty()):
        return _make_console(width=_PIPE_WIDTH)
    # No width, as some terminals and editors set it, leaves the choice to us.
    return _make_console(width=None if is_chosen else shutil.get_terminal_size().columns)


def stderr_console() -> "Console":
    """Return a console for progress and notes."""
    return _make_console(file=sys.stderr, quiet=detail() == "quiet")


def _make_console(**options: Any) -> "Console":
    """Return a console that writes the control characters of its own styles alone."""
    from rich.console import Console

    class PlainConsole(Console):
        def render(self, *args: Any, **kwargs: Any) -> "Iterable[Segment]":
            for segment in super().render(*args, **kwargs):
                text = segment.text if segment.control else without_controls(segment.text)
                yield segment._replace(text=text)

    return PlainConsole(**options)


def print_line(text: str, *, to_stderr: bool = False) -> None:
    """Print one line of plain text, on stdout by default."""
    console = stderr_console() if to_stderr else stdout_console()
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_prose(text: str) -> None:
    """Print sentences on stdout, with lines that end between words where a terminal is narrow."""
    stdout_console().print(text, highlight=False, markup=False)


def print_error(text: str) -> None:
    """Print one line on stderr in the form of an error that ends a command."""
    print(f"tuner: {without_controls(text)}", file=sys.stderr)


def print_note(text: str) -> None:
    """Print one line on stderr that is not an error."""
    if detail() != "quiet":
        print(f"note: {without_controls(text)}", file=sys.stderr)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout; infinities become null."""
    json.dump(_finite(value), sys.stdout, indent=1)
    sys.stdout.write("\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value

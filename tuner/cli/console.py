"""Output of commands: results on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 120


def stdout_console() -> "Console":
    """Return a console for results; a pipe gets a fixed width that fits the tables."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def stderr_console() -> "Console":
    """Return a console for progress and notes."""
    from rich.console import Console

    return Console(file=sys.stderr)


def print_line(text: str, *, to_stderr: bool = False) -> None:
    """Print one line of plain text, on stdout by default."""
    console = stderr_console() if to_stderr else stdout_console()
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_error(text: str) -> None:
    """Print one line on stderr in the form of an error that ends a command."""
    print(f"tuner: {text}", file=sys.stderr)


def print_note(text: str) -> None:
    """Print one line on stderr that is not an error."""
    print(f"note: {text}", file=sys.stderr)


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

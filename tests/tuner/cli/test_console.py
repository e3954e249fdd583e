"""Texts of others do not command the terminal of a user."""

import io

import pytest
from rich.table import Table

from tuner.cli import console

_HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\tc\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_consoles_leave_out_control_characters(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """In lines and in cells of tables; the styles of the program remain."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    table = Table("name")
    table.add_row(_HOSTILE)
    shown = console.stdout_console()

    shown.print(table)
    shown.print(_HOSTILE, style="bold", markup=False)
    console.print_line(_HOSTILE)

    text = stream.getvalue()
    assert "owned" in text
    assert not [part for part in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\u202e") if part in text]
    assert ("\x1b[1m" in text) == is_terminal


def test_errors_leave_out_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """They have messages of servers."""
    console.print_error(_HOSTILE)
    console.print_note(_HOSTILE)

    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(capsys.readouterr().err)

"""Rendering of a local tuning run on a console."""

import io

from rich.console import Console

from tuner.cli.rendering.progress import console_callbacks


def test_notes_and_busy_shares_are_printed_as_lines() -> None:
    """Each note has a line of its own, however long; the busy shares of all devices share one."""
    stream = io.StringIO()
    note = "the batch size is fixed to 1 [guessed], as no option says which one; `--input` does"

    with console_callbacks(Console(file=stream)) as callbacks:
        callbacks.on_note(note)
        callbacks.on_busy({"local": 0.512, "gpu:0": 1.0})

    assert stream.getvalue().splitlines() == [
        f"note: {note}",
        "busy: local 51.2%, gpu:0 100.0% of the time",
    ]

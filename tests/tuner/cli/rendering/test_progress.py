"""Rendering of a local tuning run on a console."""

import io

import pytest
from rich.console import Console

from tuner.cli.rendering.progress import (
    LiveProgress,
    PlainProgress,
    console_callbacks,
    make_progress,
)
from tuner.queries.progress import JobProgress


def test_notes_and_busy_shares_are_printed_as_lines() -> None:
    """Each note has a line of its own, however long; the busy shares of all devices share one."""
    stream = io.StringIO()
    note = "the batch size is fixed to 1 [guessed], as no option says which one; `--input` does"

    with console_callbacks(Console(file=stream)) as callbacks:
        callbacks.on_note(note)
        callbacks.on_busy({"local": 0.512, "gpu:0": 1.0})

    assert stream.getvalue().splitlines() == [
        f"note: {note}",
        "searching, building or measuring: local 51.2%, gpu:0 100.0% of the time",
    ]


def test_a_pipe_gets_a_line_where_something_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most every few seconds, and one a minute while the same trials are confirmed."""
    stream = io.StringIO()
    plain = PlainProgress(Console(file=stream, width=10_000))
    for second in range(0, 121, 2):
        monkeypatch.setattr("time.monotonic", lambda second=second: 1000.0 + second)
        plain.show(
            JobProgress(
                phase="measuring" if second < 20 else "confirming the winners",
                tasks=(),
                total_latency_secs=1e-3,
                spent_trials=min(second, 20),
                budget_trials=20,
                spent_secs=float(second),
                eta_secs=None,
                outlook=None,
            )
        )

    lines = stream.getvalue().splitlines()
    trials = [line.split("trials ")[1].split("/")[0] for line in lines]
    assert trials == ["0", "6", "12", "18", "20", "20"]


@pytest.mark.parametrize(("terminal", "kind"), [("dumb", PlainProgress), ("xterm", LiveProgress)])
def test_a_terminal_that_cannot_redraw_gets_lines(
    terminal: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get a table."""
    monkeypatch.setenv("TERM", terminal)

    assert isinstance(make_progress(Console(file=io.StringIO(), force_terminal=True)), kind)

"""Tables at the width of a terminal and in a pipe."""

import io
from pathlib import Path

import pytest
from rich.console import Console

import tuner.cli
from tests.tuner.views import task_view
from tuner.cli import console
from tuner.cli.rendering.grid import Column, Grid
from tuner.cli.rendering.tables import task_table

_LONG = "conv2d_add_subtract_divide_multiply_add_relu[1x4x4x512]"


def grid() -> Grid:
    """Return a table with a column of each kind."""
    table = Grid(
        Column("Task", "number"),
        Column("Name", "name"),
        Column("Latency (ms)", "number"),
        Column("Roof", "number", 1),
        Column("Origin", rank=2),
        Column("Error", "prose"),
        title="Tasks",
    )
    table.add("12", _LONG, "1,234.5678", "81.2%", "rules:direct", "the compiler ran out of memory")
    return table


def printed(width: int) -> list[str]:
    """Return the lines of the table at a width."""
    stream = io.StringIO()
    Console(file=stream, width=width).print(grid())
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [56, 60, 80, 100, 120, 10_000])
def test_numbers_are_whole_at_every_width(width: int) -> None:
    """Names lose their middle, sentences wrap, and columns are left out by rank."""
    lines = printed(width)
    text = " ".join(lines)

    assert max(map(len, lines)) <= width
    assert "1,234.5678" in text
    assert "x512]" in text
    assert "Latency (ms)" in text
    assert all(word in text for word in ("compiler", "ran", "memory"))
    assert ("Origin" in text) <= ("Roof" in text)
    assert _LONG in text or width <= 120


def test_columns_without_values_are_left_out_first() -> None:
    """Their rank does not matter."""
    table = Grid(Column("Name", "name"), Column("Empty", "number", 1), Column("Full", rank=2))
    table.add(_LONG, "-", "value")
    stream = io.StringIO()

    Console(file=stream, width=30).print(table)

    assert ("Empty" in stream.getvalue(), "value" in stream.getvalue()) == (False, True)


@pytest.mark.parametrize(("columns", "fits"), [(None, False), ("0", False), ("60", True)])
def test_a_pipe_has_the_width_of_columns_or_none(
    columns: str | None,
    fits: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without the variable, or where it is 0, nothing is cut or wrapped."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)

    console.stdout_console().print(grid())

    lines = capsys.readouterr().out.splitlines()
    assert (len(lines) > 3) == fits
    assert (max(map(len, lines)) <= 60) == fits


def test_names_that_repeat_have_a_hash() -> None:
    """And every row has the number that other commands take."""
    tasks = [
        task_view(id=row, task_id=40 + row, workload=digit * 64, name=name)
        for row, (name, digit) in enumerate([("dense", "a"), ("dense", "b"), ("relu", "c")])
    ]
    stream = io.StringIO()

    Console(file=stream, width=80).print(task_table(tasks))

    rows = [line.split()[:3] for line in stream.getvalue().splitlines()[2:]]
    assert rows == [["40", "dense", "aaaaaa"], ["41", "dense", "bbbbbb"], ["42", "relu", "2"]]


def test_every_table_is_a_grid() -> None:
    """A table of rich alone crops numbers."""
    files = Path(tuner.cli.__file__).parent.rglob("*.py")

    users = {file.name for file in files if "rich.table" in file.read_text()}
    assert users == {"grid.py"}

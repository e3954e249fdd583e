"""Records that were measured again, as lines, as a table and as JSON."""

from typing import Any

from rich.text import Text

from tuner.cli.console import print_line, stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.cli.rendering.records.stale_records import differences_in_words
from tuner.errors import last_line
from tuner.formatting import counted, milliseconds, short_name
from tuner.tuning.rounds.remeasure_options import Remeasured, Verified


def show_remeasured(number: int, n_records: int, row: Remeasured) -> None:
    """Print on stderr the latency of one record before and now, or its error."""
    print_line(f"{number}/{n_records} {row.name}: {_outcome(row)}", to_stderr=True)


def verified_as_json(verified: Verified) -> dict[str, Any]:
    """Return what ``--json`` prints of a verification."""
    rows = [
        {
            **{name: value for name, value in vars(row).items() if not name.endswith("latency")},
            "differs": {name: list(pair) for name, pair in row.differs.items()},
            "old_latency_secs": row.old_latency,
            "latency_secs": row.latency,
            "change": row.change,
        }
        for row in verified.rows
    ]
    return {
        "target": verified.target,
        "verified": verified.n_verified,
        "failed": len(verified.rows) - verified.n_verified,
        "left": verified.n_left,
        "secs": verified.secs,
        "records": rows,
    }


def show_verified(verified: Verified, *, current: bool) -> None:
    """Print a table of all records, the versions they were measured with, and their number."""
    console = stdout_console()
    if verified.rows:
        console.print(_table(verified))
    elif current:
        console.print("This version has no best records yet; create them with `tuner tune`.")
    else:
        console.print("Every subgraph with records has one of this version.")
    differences = {differences_in_words(row.differs) for row in verified.rows if row.differs}
    for text in sorted(differences):
        console.print(f"version: {text}", style="dim", highlight=False, markup=False)
    left = f"; {counted(verified.n_left, 'more subgraph')} left" if verified.n_left else ""
    console.print(
        f"{verified.n_verified} of {counted(len(verified.rows), 'record')} verified "
        f"in {verified.secs:.0f} s{left}",
        highlight=False,
    )


def _outcome(row: Remeasured) -> str:
    if row.latency is None:
        return ": ".join(filter(None, (row.error_kind or "failed", last_line(row.error_text))))
    before, now = milliseconds(row.old_latency), milliseconds(row.latency)
    return f"{before} -> {now} ms ({row.change or 0.0:+.1%})"


def _table(verified: Verified) -> Grid:
    table = Grid(
        Column("Workload"),
        Column("Name", "name"),
        Column("Calls", "number", 2),
        Column("Record", "number", 1),
        Column("Before (ms)", "number"),
        Column("Now (ms)", "number"),
        Column("Change", "number"),
        Column("Result"),
        title="Measured again",
    )
    for row in verified.rows:
        is_new = row.record not in (None, row.old_record)
        table.add(
            short_name(row.workload),
            row.name,
            str(row.weight),
            f"{row.old_record} -> {row.record}" if is_new else str(row.old_record),
            milliseconds(row.old_latency),
            milliseconds(row.latency),
            "-" if row.change is None else f"{row.change:+.1%}",
            Text("verified") if row.error_kind is None else Text(row.error_kind, "red"),
        )
    return table

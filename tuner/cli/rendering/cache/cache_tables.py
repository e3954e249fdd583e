"""Tables of build cache entries for a terminal, and the ages that options take."""

import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from tuner.build_cache.gc import Collected
from tuner.build_cache.headers import Header
from tuner.build_cache.index import IndexedEntry
from tuner.build_cache.keys import PartDifference
from tuner.build_cache.stats import KindStats, VerifyResult
from tuner.cli.console import stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.formatting import age, counted, printable, size

SHORT = 12
_VALUE_CHARS = 200


def show_entries(rows: Sequence[tuple[IndexedEntry, Header | None]], n_entries: int) -> None:
    """Print entries, a part of ``n_entries``, as a table."""
    table = Grid(
        Column("Entry"),
        Column("Kind"),
        Column("Title", "name"),
        Column("Files", "number", 1),
        Column("On disk", "number"),
        Column("Last used", "number"),
        title="Cache",
    )
    for entry, header in rows:
        table.add(
            entry.digest[:SHORT],
            entry.kind,
            header.title if header else Text("damaged, or written by a later version", "red"),
            str(len(header.files)) if header else "",
            size(entry.n_bytes),
            age(entry.used),
        )
    console = stdout_console()
    console.print(table)
    more = f" of {n_entries}; --limit shows more" if len(rows) < n_entries else ""
    console.print(f"{counted(len(rows), 'entry')}{more}", highlight=False)


def show_stats(title: str, rows: Sequence[KindStats]) -> None:
    """Print totals by kind of entry as a table."""
    names = ("Entries", "On disk", "Unpacked", "Oldest use", "Newest use")
    table = Grid(Column("Kind"), *(Column(name, "number") for name in names), title=title)
    for row in rows:
        table.add(
            row.kind,
            str(row.n_entries),
            size(row.n_bytes),
            size(row.n_raw_bytes),
            age(row.oldest_use),
            age(row.newest_use),
        )
    console = stdout_console()
    console.print(table)
    console.print(
        f"{counted(sum(row.n_entries for row in rows), 'entry')}, "
        f"{size(sum(row.n_bytes for row in rows))} on disk",
        highlight=False,
    )


def show_entry(entry: IndexedEntry, header: Header) -> None:
    """Print all facts about an entry."""
    facts = [
        ("entry", entry.digest),
        ("kind", header.kind),
        ("title", header.title or "none"),
        ("created", f"{age(header.created)} on {header.origin}"),
        ("used", age(entry.used)),
        ("on disk", f"{size(entry.n_bytes)}, unpacked {size(header.n_bytes)}"),
        ("file", str(entry.path)),
    ]
    for label, text in facts:
        _line(f"{label:<8} {text}")
    _line("key")
    for name, value in sorted(header.parts.items()):
        _line(f"  {name} = {_short(value)}")
    _line("files")
    for name, file in header.files.items():
        form = header.stored[name].form
        _line(f"  {name}  {size(file.n_bytes)}, stored as {form}, sha256 {file.sha256[:SHORT]}")
    if header.info:
        _line(f"info     {_short(header.info)}")


def show_difference(first: Header, second: Header, parts: Sequence[PartDifference]) -> None:
    """Print the parts in which the keys of two entries differ."""
    if first.kind != second.kind:
        _line(f"kind: {first.kind} | {second.kind}")
    for part in parts:
        _line(f"{part.part}: {_short(part.ours)} | {_short(part.theirs)}")
    same = "the keys are equal" if not parts and first.kind == second.kind else ""
    _line(same or f"{len(parts)} parts differ")


def show_problem(result: VerifyResult) -> None:
    """Print the problem of a damaged entry."""
    dropped = "; dropped" if result.dropped else ""
    _line(f"{result.entry.kind} {result.entry.digest[:SHORT]}: {result.problem}{dropped}")


def show_collected(collected: Collected, *, dry_run: bool) -> None:
    """Print the entries that a garbage collection removed, kept and left."""
    verb = "would remove" if dry_run else "removed"
    _line(f"{verb} {counted(collected.n_entries, 'entry')}, {size(collected.n_bytes)}")
    if collected.n_held:
        _line(f"kept {collected.n_held} that are in use or cannot be removed")
    if collected.n_strays:
        _line(f"{verb} {counted(collected.n_strays, 'temporary file')} of stopped processes")
    _line(f"left {counted(collected.n_left, 'entry')}, {size(collected.n_left_bytes)}")


def _line(text: str) -> None:
    stdout_console().print(Text(printable(text)), soft_wrap=True)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}..."

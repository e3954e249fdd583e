"""``tuner cache``: list, explain, verify, remove and copy entries of the build cache."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import options
from tuner.cli.commands.cache import store, upkeep
from tuner.cli.commands.cache.store import CacheDirOption, KindOption
from tuner.cli.console import print_json, print_line
from tuner.cli.options import argument, flag, option
from tuner.cli.streams import ProgressCounter

if TYPE_CHECKING:
    from tuner.build_cache.headers import Header
    from tuner.build_cache.index import IndexedEntry
    from tuner.build_cache.local import LocalTier
    from tuner.build_cache.stats import VerifyResult

app = typer.Typer(
    help="Inspect the build cache, free space, copy entries to other machines.",
    no_args_is_help=True,
)


@app.command("ls")
def ls(
    kind: KindOption = None,
    limit: Annotated[int, option("N", "Maximum number of entries.", min=1, max=1_000_000)] = 50,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List entries, most recently used first.

    Example:
        tuner cache ls --kind subgraph --limit 20
    """
    from tuner.build_cache import index
    from tuner.cli.rendering.cache import cache_tables

    local = store.open_local(cache_dir, data_dir)
    entries = sorted(index.entries(local, store.check_kind(kind)), key=lambda entry: -entry.used)
    rows = [(entry, index.header_of(entry)) for entry in entries[:limit]]
    if json_output:
        listed = [_as_json(entry, header) for entry, header in rows]
        print_json({"cache_dir": str(local.root), "n_all": len(entries), "entries": listed})
        return
    cache_tables.show_entries(rows, len(entries))


@app.command("stats")
def stats(
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Print totals by kind: entries, bytes on disk and unpacked, oldest and newest use.

    In a large cache, the unpacked size is estimated from a sample.

    Example:
        tuner cache stats
    """
    from tuner.build_cache import stats as cache_stats
    from tuner.cli.rendering.cache import cache_tables

    local = store.open_local(cache_dir, data_dir)
    rows = cache_stats.stats(local)
    if json_output:
        kinds = [
            {
                **asdict(row),
                "oldest_use": _iso_time(row.oldest_use),
                "newest_use": _iso_time(row.newest_use),
            }
            for row in rows
        ]
        print_json({"cache_dir": str(local.root), "kinds": kinds})
        return
    cache_tables.show_stats(str(local.root), rows)


@app.command("explain")
def explain(
    entry: Annotated[str, argument("ENTRY", "First characters of an entry's digest.")],
    other: Annotated[str | None, argument("OTHER", "Another entry, to compare the keys.")] = None,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show the key, files and origin of an entry, or the differences between two keys.

    Examples:
        tuner cache explain 8ddefa3ac2eb
        tuner cache explain 8ddefa3ac2eb 41c07d
    """
    from tuner.build_cache.keys import differing
    from tuner.cli.rendering.cache import cache_tables

    local = store.open_local(cache_dir, data_dir)
    first, first_header = _find(local, entry)
    if other is None:
        if json_output:
            print_json(_as_json(first, first_header))
        else:
            cache_tables.show_entry(first, first_header)
        return
    second, second_header = _find(local, other)
    parts = differing(first_header.parts, second_header.parts)
    if json_output:
        differences = [{"part": part.part, "values": [part.ours, part.theirs]} for part in parts]
        print_json({"entries": [first.digest, second.digest], "differing": differences})
        return
    cache_tables.show_difference(first_header, second_header, parts)


@app.command("verify")
def verify(
    kind: KindOption = None,
    drop: Annotated[bool, flag("--drop", "Remove damaged entries; builds recreate them.")] = False,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Compare every entry with its checksums.

    Not needed for correctness, as every use verifies its entry. Exit status 1 if damaged entries
    remain.

    Example:
        tuner cache verify --drop
    """
    from tuner.build_cache import index
    from tuner.build_cache import stats as cache_stats
    from tuner.cli.rendering.cache import cache_tables
    from tuner.formatting import counted
    from tuner.interrupts import interruptible

    local = store.open_local(cache_dir, data_dir)
    entries = index.entries(local, store.check_kind(kind))
    progress = ProgressCounter("verified {} entries so far")
    n_read = 0
    damaged: list[VerifyResult] = []
    with interruptible():
        for result in cache_stats.verify(local, entries, drop=drop):
            n_read += 1
            progress(n_read)
            if result.problem is None:
                continue
            damaged.append(result)
            if not json_output:
                cache_tables.show_problem(result)
    if json_output:
        print_json({"verified": n_read, "damaged": [_damage_as_json(row) for row in damaged]})
    else:
        print_line(f"verified {counted(n_read, 'entry')}, {len(damaged)} damaged")
    if not all(result.dropped for result in damaged):
        raise typer.Exit(1)


app.command("gc")(upkeep.gc)
app.command("export")(upkeep.export)
app.command("import")(upkeep.import_)


def _find(local: "LocalTier", prefix: str) -> "tuple[IndexedEntry, Header]":
    """Find the one entry whose digest begins with a prefix.

    Raises:
        RequestError: If there is none, or more than one.
        WorkError: If the entry cannot be read.
    """
    from tuner.build_cache import index
    from tuner.errors import RequestError, WorkError

    entries = [entry for entry in index.entries(local) if entry.digest.startswith(prefix.lower())]
    if not entries:
        raise RequestError(
            f"no entry of {local.root} begins with {prefix!r}; list them with `tuner cache ls`"
        )
    if len(entries) > 1:
        raise RequestError(f"{len(entries)} entries begin with {prefix!r}; give more characters")
    header = index.header_of(entries[0])
    if header is None:
        raise WorkError(f"{entries[0].path} is damaged, or written by a later version")
    return entries[0], header


def _as_json(entry: "IndexedEntry", header: "Header | None") -> dict[str, Any]:
    value: dict[str, Any] = {
        "digest": entry.digest,
        "kind": entry.kind,
        "n_bytes": entry.n_bytes,
        "used": _iso_time(entry.used),
        "path": str(entry.path),
    }
    if header is None:
        return value
    files = {
        name: {**vars(file), "form": header.stored[name].form}
        for name, file in header.files.items()
    }
    return {
        **value,
        "title": header.title,
        "parts": header.parts,
        "files": files,
        "info": header.info,
        "created": _iso_time(header.created),
        "origin": header.origin,
    }


def _damage_as_json(result: "VerifyResult") -> dict[str, Any]:
    return {
        "digest": result.entry.digest,
        "kind": result.entry.kind,
        "problem": result.problem,
        "dropped": result.dropped,
    }


def _iso_time(secs: float) -> str:
    return datetime.fromtimestamp(secs, UTC).isoformat(timespec="seconds")

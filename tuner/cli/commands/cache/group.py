"""``tuner cache``: list, explain, verify, remove and copy entries of the build cache."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import options
from tuner.cli.commands.cache import store
from tuner.cli.commands.cache.store import CacheDirOption, KindOption
from tuner.cli.console import print_json, print_line, print_note
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
    progress = ProgressCounter("verified {} so far", "entry")
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


@app.command("gc")
def gc(
    max_size: Annotated[
        str | None,
        option(
            "SIZE", "Remove the least recently used entries until the rest is smaller, such as 5GB."
        ),
    ] = None,
    unused_for: Annotated[
        str | None,
        option("TIME", "Remove entries that were not used for this long, such as 30d or 12h."),
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Print what would be removed; remove nothing.")
    ] = False,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Remove old entries and temporary files of stopped processes.

    Without a limit, only temporary files are removed. Entries that a running process has open
    stay, so this is safe at any time, even during builds.

    Example:
        tuner cache gc --max-size 5GB --unused-for 30d --dry-run
    """
    from tuner.build_cache import gc as cache_gc
    from tuner.cli.rendering.cache import cache_tables
    from tuner.interrupts import interruptible
    from tuner.settings.values import parse_age, parse_size

    settings = store.read_settings(cache_dir, data_dir)
    max_bytes = None if max_size is None else parse_size("--max-size", max_size)
    secs = None if unused_for is None else parse_age("--unused-for", unused_for)
    with interruptible():
        collected = cache_gc.collect(
            store.tier_of(settings),
            max_bytes=max_bytes,
            unused_for_secs=secs,
            dry_run=dry_run,
            progress=ProgressCounter("removed {} so far", "entry"),
        )
    if json_output:
        print_json({**vars(collected), "dry_run": dry_run})
        return
    cache_tables.show_collected(collected, dry_run=dry_run)


@app.command("export")
def export(
    file: Annotated[Path, argument("FILE", "Bundle to write.")],
    kind: KindOption = None,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Export entries to a bundle, a tar file for machines without a network.

    The file appears only when it is complete. A bundle holds machine code. Its entries are signed
    with the key of TUNER_SIGNING_KEY, if that is set.

    Example:
        tuner cache export compiled.tar --kind subgraph
    """
    from tuner.build_cache import bundles, index
    from tuner.formatting import counted
    from tuner.interrupts import interruptible
    from tuner.library.signatures import policy_of

    settings = store.read_settings(cache_dir, data_dir)
    local = store.tier_of(settings)
    signatures = policy_of(settings)
    with interruptible():
        entries = index.entries(local, store.check_kind(kind))
        progress = ProgressCounter("exported {} so far", "entry")
        n_entries = bundles.export(local, file, entries, progress, signatures)
    if json_output:
        print_json({"file": str(file), "n_entries": n_entries})
        return
    print_line(f"exported {counted(n_entries, 'entry')} to {file}")


@app.command("import")
def import_(
    file: Annotated[Path, argument("FILE", "Bundle to read.")],
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Import the entries of a bundle that are missing here; verify each.

    Machine code runs as you: import bundles of trusted people only, or require signatures by keys
    of TUNER_TRUSTED_KEYS (TUNER_SIGNATURES=required). A bundle that is cut off is imported up to
    that point. Exit status 1 if it is cut off or an entry is rejected.

    Example:
        tuner cache import compiled.tar
    """
    from tuner.build_cache import bundles
    from tuner.formatting import counted
    from tuner.interrupts import interruptible
    from tuner.library.signatures import policy_of

    settings = store.read_settings(cache_dir, data_dir)
    local = store.tier_of(settings)
    signatures = policy_of(settings)
    with interruptible():
        progress = ProgressCounter("imported {} so far", "entry")
        outcome = bundles.import_(local, file, progress, signatures)
    if json_output:
        print_json({"file": str(file), **vars(outcome)})
    else:
        for line in outcome.refused:
            print_note(line)
        print_line(
            f"imported {file}: {counted(outcome.added, 'entry')} added, {outcome.known} known"
        )
        if outcome.truncated:
            print_note(f"{file} is cut off; only its complete entries were imported")
    if outcome.refused or outcome.truncated:
        raise typer.Exit(1)

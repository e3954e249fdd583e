"""``tuner cache``: look at what was compiled, make room, carry it to other machines."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import options
from tuner.cli.commands import cache_store, cache_upkeep
from tuner.cli.commands.cache_store import CacheDirOption, Counter, KindOption
from tuner.cli.console import print_json, print_line

if TYPE_CHECKING:
    from tuner.build_cache.headers import Header
    from tuner.build_cache.index import IndexedEntry
    from tuner.build_cache.local import LocalTier

app = typer.Typer(
    help="Look at what was compiled and is kept, make room, carry it to other machines.",
    no_args_is_help=True,
)


@app.command("ls")
def ls(
    kind: KindOption = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="At most so many.")
    ] = 50,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List entries, the one used last first.

    Example:
        tuner cache ls --kind subgraph --limit 20
    """
    from tuner.build_cache import index
    from tuner.cli.rendering import cache_tables

    local = cache_store.open_local(cache_dir, data_dir)
    chosen = index.entries(local, cache_store.checked_kind(kind))
    spots = sorted(chosen, key=lambda spot: -spot.used)
    rows = [(spot, index.header_of(spot)) for spot in spots[:limit]]
    if json_output:
        entries = [_as_json(spot, header) for spot, header in rows]
        print_json({"cache_dir": str(local.root), "n_all": len(spots), "entries": entries})
        return
    cache_tables.show_entries(rows, len(spots))


@app.command("stats")
def stats(
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Sum up by kind: entries, bytes on disk and unpacked, first and last use.

    What entries would be unpacked is judged by a sample where there are many.

    Example:
        tuner cache stats
    """
    from tuner.build_cache import stats as cache_stats
    from tuner.cli.rendering import cache_tables

    local = cache_store.open_local(cache_dir, data_dir)
    rows = cache_stats.stats(local)
    if json_output:
        kinds = [
            {
                **asdict(row),
                "oldest_use": _moment(row.oldest_use),
                "newest_use": _moment(row.newest_use),
            }
            for row in rows
        ]
        print_json({"cache_dir": str(local.root), "kinds": kinds})
        return
    cache_tables.show_stats(str(local.root), rows)


@app.command("explain")
def explain(
    entry: Annotated[
        str, typer.Argument(help="How the digest of an entry begins.", show_default=False)
    ],
    other: Annotated[
        str | None,
        typer.Argument(help="Another one, to see what differs.", show_default=False),
    ] = None,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show what the key of an entry is made of, its files, its origin; or what two differ in.

    Example:
        tuner cache explain 8ddefa3ac2eb
    """
    from tuner.build_cache.keys import differing
    from tuner.cli.rendering import cache_tables

    local = cache_store.open_local(cache_dir, data_dir)
    spot, header = _one(local, entry)
    if other is None:
        if json_output:
            print_json(_as_json(spot, header))
        else:
            cache_tables.show_entry(spot, header)
        return
    spot_2, header_2 = _one(local, other)
    parts = differing(header.parts, header_2.parts)
    if json_output:
        differ = [{"part": part.part, "values": [part.ours, part.theirs]} for part in parts]
        print_json({"entries": [spot.digest, spot_2.digest], "differing": differ})
        return
    cache_tables.show_difference(header, header_2, parts)


@app.command("verify")
def verify(
    kind: KindOption = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Remove what is damaged; it is made again when needed.")
    ] = False,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Read every entry and compare it with its checksums.

    Nothing depends on it: each use verifies, too. Damaged entries that stay are a failure:
    exit status 1.

    Example:
        tuner cache verify --drop
    """
    from tuner.build_cache import index
    from tuner.build_cache import stats as cache_stats
    from tuner.cli.rendering import cache_tables
    from tuner.interrupts import interruptible

    local = cache_store.open_local(cache_dir, data_dir)
    chosen = index.entries(local, cache_store.checked_kind(kind))
    tell = Counter("verified")
    n_read, bad = 0, []
    with interruptible():
        for verdict in cache_stats.verify(local, chosen, drop=drop):
            n_read += 1
            tell(n_read)
            if verdict.problem is None:
                continue
            bad.append(verdict)
            if not json_output:
                cache_tables.show_problem(verdict)
    if json_output:
        found = [
            {
                "digest": v.entry.digest,
                "kind": v.entry.kind,
                "problem": v.problem,
                "dropped": v.dropped,
            }
            for v in bad
        ]
        print_json({"verified": n_read, "damaged": found})
    else:
        print_line(f"verified {n_read} entries, {len(bad)} are damaged")
    if not all(verdict.dropped for verdict in bad):
        raise typer.Exit(1)


app.command("gc")(cache_upkeep.gc)
app.command("export")(cache_upkeep.export)
app.command("import")(cache_upkeep.import_)


def _one(local: "LocalTier", prefix: str) -> "tuple[IndexedEntry, Header]":
    """Find the entry whose digest begins so."""
    from tuner.build_cache import index
    from tuner.errors import RequestError, WorkError

    found = [spot for spot in index.entries(local) if spot.digest.startswith(prefix.lower())]
    if not found:
        raise RequestError(f"no entry of {local.root} begins with {prefix!r}; see tuner cache ls")
    if len(found) > 1:
        raise RequestError(f"{len(found)} entries begin with {prefix!r}; give more of the digest")
    header = index.header_of(found[0])
    if header is None:
        raise WorkError(f"{found[0].path} is damaged, or of a later version")
    return found[0], header


def _as_json(spot: "IndexedEntry", header: "Header | None") -> dict[str, Any]:
    value: dict[str, Any] = {
        "digest": spot.digest,
        "kind": spot.kind,
        "n_bytes": spot.n_bytes,
        "used": _moment(spot.used),
        "path": str(spot.path),
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
        "created": _moment(header.created),
        "origin": header.origin,
    }


def _moment(secs: float) -> str:
    return datetime.fromtimestamp(secs, UTC).isoformat(timespec="seconds")

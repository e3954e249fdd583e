"""``tuner cache``: look at what was compiled, make room, carry it to other machines."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.commands import options, streams

if TYPE_CHECKING:
    from tuner.config import Settings
    from tuner.library.headers import Header
    from tuner.library.local import LocalTier
    from tuner.library.scanning import Spot

app = typer.Typer(
    help="Look at what was compiled and is kept, make room, carry it to other machines.",
    no_args_is_help=True,
)

_REPORT_SECS = 1.0

CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        help="Where compiled code is kept [default: cache in the data directory]. "
        "Also TUNER_CACHE_DIR.",
        show_default=False,
    ),
]
KindOption = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Only entries of this kind.", show_default=False),
]


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
    from tuner.commands import cache_tables
    from tuner.library import scanning

    local = _local(cache_dir, data_dir)
    spots = sorted(scanning.spots(local, _checked(kind)), key=lambda spot: -spot.used)
    rows = [(spot, scanning.header_of(spot)) for spot in spots[:limit]]
    if json_output:
        entries = [_as_json(spot, header) for spot, header in rows]
        options.print_json({"cache_dir": str(local.root), "n_all": len(spots), "entries": entries})
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
    from tuner.commands import cache_tables
    from tuner.library import upkeep

    local = _local(cache_dir, data_dir)
    rows = upkeep.stats(local)
    if json_output:
        kinds = [
            {
                **asdict(row),
                "oldest_use": _moment(row.oldest_use),
                "newest_use": _moment(row.newest_use),
            }
            for row in rows
        ]
        options.print_json({"cache_dir": str(local.root), "kinds": kinds})
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
    from tuner.commands import cache_tables
    from tuner.library.keys import differing

    local = _local(cache_dir, data_dir)
    spot, header = _one(local, entry)
    if other is None:
        if json_output:
            options.print_json(_as_json(spot, header))
        else:
            cache_tables.show_entry(spot, header)
        return
    spot_2, header_2 = _one(local, other)
    parts = differing(header.parts, header_2.parts)
    if json_output:
        differ = [{"part": part.part, "values": [part.ours, part.theirs]} for part in parts]
        options.print_json({"entries": [spot.digest, spot_2.digest], "differing": differ})
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
    from tuner.commands import cache_tables
    from tuner.interrupts import interruptible
    from tuner.library import scanning, upkeep

    local = _local(cache_dir, data_dir)
    tell = _Counter("verified")
    n_read, bad = 0, []
    with interruptible():
        for verdict in upkeep.verify(local, scanning.spots(local, _checked(kind)), drop=drop):
            n_read += 1
            tell(n_read)
            if verdict.problem is None:
                continue
            bad.append(verdict)
            if not json_output:
                cache_tables.show_verdict(verdict)
    if json_output:
        found = [
            {
                "digest": v.spot.digest,
                "kind": v.spot.kind,
                "problem": v.problem,
                "dropped": v.dropped,
            }
            for v in bad
        ]
        options.print_json({"verified": n_read, "damaged": found})
    else:
        streams.say(f"verified {n_read} entries, {len(bad)} are damaged")
    if not all(verdict.dropped for verdict in bad):
        raise typer.Exit(1)


@app.command("gc")
def gc(
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Remove those unused for longest until the rest takes less, such as 5GB.",
            show_default=False,
        ),
    ] = None,
    unused_for: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Remove what nobody used for so long, such as 30d or 12h.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Make room: remove what was not used for long, and what stopped processes left.

    What a running process has open stays. Without a limit only leftovers go. Safe at any time,
    beside any number of builds.

    Example:
        tuner cache gc --max-size 5GB --unused-for 30d --dry-run
    """
    from tuner.commands import cache_tables
    from tuner.interrupts import interruptible
    from tuner.library import collecting

    settings = _settings(cache_dir, data_dir)
    max_bytes = None if max_size is None else cache_tables.parse_size("--max-size", max_size)
    secs = None if unused_for is None else cache_tables.parse_age("--unused-for", unused_for)
    with interruptible():
        collected = collecting.collect(
            _tier(settings),
            max_bytes=max_bytes,
            unused_for_secs=secs,
            dry_run=dry_run,
            progress=_Counter("removed"),
        )
        n_old_bytes = collecting.remove_old_libraries(settings.data_dir, dry_run=dry_run)
    if json_output:
        options.print_json({**vars(collected), "n_old_bytes": n_old_bytes, "dry_run": dry_run})
        return
    cache_tables.show_collected(collected, dry_run=dry_run)
    if n_old_bytes:
        verb = "would remove" if dry_run else "removed"
        streams.say(f"{verb} {cache_tables.size(n_old_bytes)} of libraries in a form of before")


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="The bundle to write.", show_default=False)],
    kind: KindOption = None,
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Write entries to a bundle, one tar file, for machines without a network.

    The file is complete or not there. A bundle holds machine code: import only those of people
    you trust.

    Example:
        tuner cache export compiled.tar --kind subgraph
    """
    from tuner.interrupts import interruptible
    from tuner.library import bundles, scanning

    local = _local(cache_dir, data_dir)
    with interruptible():
        spots = scanning.spots(local, _checked(kind))
        n_entries = bundles.export(local, file, spots, _Counter("exported"))
    if json_output:
        options.print_json({"file": str(file), "entries": n_entries})
        return
    streams.say(f"exported {n_entries} entries to {file}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="The bundle to read.", show_default=False)],
    cache_dir: CacheDirOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Take the entries of a bundle that are not here; each is verified.

    Of a bundle that was cut off, what is whole is taken. Entries that are refused, and a bundle
    that was cut off, are a failure: exit status 1.

    Example:
        tuner cache import compiled.tar
    """
    from tuner.interrupts import interruptible
    from tuner.library import bundles

    with interruptible():
        found = bundles.import_(_local(cache_dir, data_dir), file, _Counter("imported"))
    if json_output:
        options.print_json({"file": str(file), **vars(found)})
    else:
        for line in found.refused:
            options.note(line)
        streams.say(f"imported {file}: {found.added} entries added, {found.known} known")
        if found.truncated:
            options.note(f"{file} is cut off; what is whole in it was taken")
    if found.refused or found.truncated:
        raise typer.Exit(1)


class _Counter:
    """Tells stderr, now and then, how far long work is."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._next = time.monotonic() + _REPORT_SECS

    def __call__(self, n_entries: int) -> None:
        """Say how many entries are through."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_SECS
            streams.say(f"{self._done} {n_entries} entries so far", to_stderr=True)


def _settings(cache_dir: Path | None, data_dir: Path | None) -> "Settings":
    from tuner.config import read_settings

    return read_settings({"data_dir": data_dir, "cache_dir": cache_dir})


def _local(cache_dir: Path | None, data_dir: Path | None) -> "LocalTier":
    return _tier(_settings(cache_dir, data_dir))


def _tier(settings: "Settings") -> "LocalTier":
    from tuner.library.local import LocalTier

    return LocalTier(settings.cache_dir, options.note)


def _checked(kind: str | None) -> str | None:
    from tuner.errors import RequestError
    from tuner.library.keys import is_kind

    if kind is not None and not is_kind(kind):
        raise RequestError(f"--kind takes a word in lower-case letters, got {kind!r}")
    return kind


def _one(local: "LocalTier", prefix: str) -> "tuple[Spot, Header]":
    """Find the entry whose digest begins so."""
    from tuner.errors import RequestError, WorkError
    from tuner.library import scanning

    found = [spot for spot in scanning.spots(local) if spot.digest.startswith(prefix.lower())]
    if not found:
        raise RequestError(f"no entry of {local.root} begins with {prefix!r}; see tuner cache ls")
    if len(found) > 1:
        raise RequestError(f"{len(found)} entries begin with {prefix!r}; give more of the digest")
    header = scanning.header_of(found[0])
    if header is None:
        raise WorkError(f"{found[0].path} is damaged, or of a later version")
    return found[0], header


def _as_json(spot: "Spot", header: "Header | None") -> dict[str, Any]:
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

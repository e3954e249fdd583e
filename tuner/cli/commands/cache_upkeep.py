"""``tuner cache gc``, ``export`` and ``import``: make room, carry entries to other machines."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import options
from tuner.cli.commands import cache_store
from tuner.cli.commands.cache_store import CacheDirOption, Counter, KindOption
from tuner.cli.console import print_json, print_line, print_note


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
    from tuner.build_cache import gc as cache_gc
    from tuner.cli.rendering import cache_tables
    from tuner.formatting import size
    from tuner.interrupts import interruptible

    settings = cache_store.read_settings(cache_dir, data_dir)
    max_bytes = None if max_size is None else cache_tables.parse_size("--max-size", max_size)
    secs = None if unused_for is None else cache_tables.parse_age("--unused-for", unused_for)
    with interruptible():
        collected = cache_gc.collect(
            cache_store.tier_of(settings),
            max_bytes=max_bytes,
            unused_for_secs=secs,
            dry_run=dry_run,
            progress=Counter("removed"),
        )
        n_old_bytes = cache_gc.remove_old_libraries(settings.data_dir, dry_run=dry_run)
    if json_output:
        print_json({**vars(collected), "n_old_bytes": n_old_bytes, "dry_run": dry_run})
        return
    cache_tables.show_collected(collected, dry_run=dry_run)
    if n_old_bytes:
        verb = "would remove" if dry_run else "removed"
        print_line(f"{verb} {size(n_old_bytes)} of libraries in a form of before")


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
    from tuner.build_cache import bundles, index
    from tuner.interrupts import interruptible

    local = cache_store.open_local(cache_dir, data_dir)
    with interruptible():
        spots = index.entries(local, cache_store.checked_kind(kind))
        n_entries = bundles.export(local, file, spots, Counter("exported"))
    if json_output:
        print_json({"file": str(file), "n_entries": n_entries})
        return
    print_line(f"exported {n_entries} entries to {file}")


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
    from tuner.build_cache import bundles
    from tuner.interrupts import interruptible

    local = cache_store.open_local(cache_dir, data_dir)
    with interruptible():
        found = bundles.import_(local, file, Counter("imported"))
    if json_output:
        print_json({"file": str(file), **vars(found)})
    else:
        for line in found.refused:
            print_note(line)
        print_line(f"imported {file}: {found.added} entries added, {found.known} known")
        if found.truncated:
            print_note(f"{file} is cut off; what is whole in it was taken")
    if found.refused or found.truncated:
        raise typer.Exit(1)

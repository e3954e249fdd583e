"""``tuner cache gc``, ``export`` and ``import``: free space, copy entries to other machines."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import options
from tuner.cli.commands.cache import store
from tuner.cli.commands.cache.store import CacheDirOption, KindOption
from tuner.cli.console import print_json, print_line, print_note
from tuner.cli.options import argument, flag, option
from tuner.cli.streams import ProgressCounter


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
            progress=ProgressCounter("removed {} entries so far"),
        )
    if json_output:
        print_json({**vars(collected), "dry_run": dry_run})
        return
    cache_tables.show_collected(collected, dry_run=dry_run)


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
        progress = ProgressCounter("exported {} entries so far")
        n_entries = bundles.export(local, file, entries, progress, signatures)
    if json_output:
        print_json({"file": str(file), "n_entries": n_entries})
        return
    print_line(f"exported {counted(n_entries, 'entry')} to {file}")


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
        progress = ProgressCounter("imported {} entries so far")
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

"""Building of a network into a library with the best records, through the build cache."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from records import bests, libraries, targets
from records.bests import BestTrace
from records.tasks import WeightedTask
from tuner.build_cache.cache import open_cache
from tuner.build_cache.entries import Entry
from tuner.compile import absent_gpus
from tuner.compile.absent_gpus import import_shipped
from tuner.compile.checks import check_complete, check_out, check_programs
from tuner.compile.library_files import LibraryFiles, tasks_of
from tuner.compile.object_compiler import ObjectCompiler
from tuner.compile.subgraphs import BuildStep, OnStep
from tuner.context import Context
from tuner.engines.runtime import clock_kernel
from tuner.files.folders import replace_folder
from tuner.jobs.preparation import Prepared
from tuner.jobs.stale_records import stale_bests
from tuner.library import manifest as manifests
from tuner.library.buckets import Buckets
from tuner.workers.pool import Pool


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build.

    Attributes:
        strict: True to reject a network with a subgraph without a record.
        explain: True to look for the nearest cache entry of every object that is compiled.
        on_step: Function that receives the origin of each object when it is ready.
        buckets: Dynamic dimensions whose sizes the networks are; None for fixed shapes.
    """

    strict: bool = False
    explain: bool = False
    on_step: OnStep = lambda _: None
    buckets: Buckets | None = None


_DEFAULTS = BuildOptions()


@dataclass(frozen=True)
class CachedLibrary:
    """A library in the build cache.

    Attributes:
        entry: Entry of the library, held in the cache until it is closed.
        manifest: Manifest with the current best records.
        cached: True if the library was in the cache before.
        steps: Origin of each object; empty if the library was cached.
        compile_secs: Time that compiling everything takes in one process.
    """

    entry: Entry
    manifest: manifests.Manifest
    cached: bool
    steps: tuple[BuildStep, ...]
    compile_secs: float

    def write_into(self, folder: Path) -> None:
        """Write the files of the library into an existing folder."""
        self.entry.write_into(folder)
        manifests.write(folder, self.manifest)


@dataclass(frozen=True)
class BuiltLibrary:
    """A library in a folder.

    Attributes:
        manifest: Manifest with the current best records.
        cached: True if the library was in the cache before.
        steps: Origin of each subgraph's object; empty if the library was cached or a service
            built it.
        secs: Duration of this build; None if a service built it.
        compile_secs: Time that compiling everything takes in one process; None if unknown.
    """

    folder: Path
    manifest: manifests.Manifest
    cached: bool
    steps: Sequence[BuildStep] = ()
    secs: float | None = None
    compile_secs: float | None = None

    @property
    def n_fallbacks(self) -> int:
        """Number of subgraphs without a record."""
        return self.manifest.n_fallbacks

    @property
    def n_hits(self) -> int:
        """Number of subgraphs whose object was in the build cache."""
        return sum(step.hit for step in self.steps)


def build_library(
    context: Context,
    networks: Sequence[Prepared],
    worker: Pool,
    out: Path,
    options: BuildOptions = _DEFAULTS,
    best: Mapping[str, BestTrace] | None = None,
) -> BuiltLibrary:
    """Build prepared networks into a folder, with a program for each.

    Args:
        context: Settings and database.
        networks: One network, or the same model for several sets of input shapes.
        worker: Process with enough memory for the whole network.
        out: Folder of the library; its contents are replaced when the new library is complete.
        best: Records to build from, by workload hash; by default the best ones.

    Raises:
        RequestError: If ``out`` holds anything else, the networks are not one model, or a record
            is missing in a strict build.
        WorkError: If the library cannot be compiled or written; ``out`` is unchanged.
    """
    check_out(out)
    started = time.perf_counter()
    library = build_into_cache(context, networks, worker, options, best)
    with library.entry:
        replace_folder(out, library.write_into)
    return BuiltLibrary(
        folder=out,
        manifest=library.manifest,
        cached=library.cached,
        steps=library.steps,
        compile_secs=library.compile_secs,
        secs=time.perf_counter() - started,
    )


def build_into_cache(
    context: Context,
    networks: Sequence[Prepared],
    worker: Pool,
    options: BuildOptions = _DEFAULTS,
    best: Mapping[str, BestTrace] | None = None,
) -> CachedLibrary:
    """Build prepared networks into the build cache; see :func:`build_library`.

    Raises:
        RequestError: If the networks are not one model, or a record is missing in a strict build.
        WorkError: If the library cannot be compiled.
    """
    check_programs(networks)
    tasks = tasks_of(networks)
    if best is None:
        best = best_records(context, networks[0], list(tasks.values()))
    if options.strict:
        check_complete(
            tasks, best, lambda: [each.workload for each in stale_bests(context, networks)]
        )
    cache, target = open_cache(context.settings), networks[0].target
    compiler = ObjectCompiler(context, cache, target, worker, options.explain, options.on_step)
    files = LibraryFiles(compiler, networks, best, options.buckets)
    made = cache.get_or_make(files.key, files.make)
    name = f"entry {made.entry.digest[:12]}"
    manifest = manifests.parse(made.entry.read(manifests.MANIFEST), name)
    _store(context, networks, made.entry, manifest)
    with context.readers() as session:
        clock_secs = targets.clock_secs(session, networks[0].target_id)
    return CachedLibrary(
        entry=made.entry,
        manifest=_with_models(_with_records(manifest, best, clock_secs), networks),
        cached=made.hit,
        steps=files.steps,
        compile_secs=float(made.entry.info["secs"]),
    )


def best_records(
    context: Context, network: Prepared, tasks: Sequence[WeightedTask]
) -> dict[str, BestTrace]:
    """Return the record that a build uses for each task that has one, by workload hash."""
    import_shipped(context, network.target, [task.workload_hash for task in tasks])
    with context.readers() as session:
        lent = absent_gpus.best_records(session, network.target, [task.task_id for task in tasks])
        own = bests.best_records(session, [task.task_id for task in tasks])
    records = {**lent, **own}
    return {task.workload_hash: records[task.task_id] for task in tasks if task.task_id in records}


def _with_records(
    manifest: manifests.Manifest, best: Mapping[str, BestTrace], clock_secs: float | None
) -> manifests.Manifest:
    """Replace the records by the current ones: a cached library may be older than they are."""
    subgraphs = tuple(
        replace(entry, record=best[entry.workload].record_id, latency=best[entry.workload].latency)
        if entry.record is not None
        else entry
        for entry in manifest.subgraphs
    )
    return replace(
        manifest, subgraphs=subgraphs, clock_secs=clock_secs, clock_kernel=clock_kernel.NAME
    )


def _with_models(manifest: manifests.Manifest, networks: Sequence[Prepared]) -> manifests.Manifest:
    """Replace the origin: another file, or other values, may have been cleaned to the same."""
    programs = tuple(
        replace(program, values=dict(network.model.values), limits=network.model.limits)
        for program, network in zip(manifest.programs, networks, strict=True)
    )
    return replace(manifest, source=networks[0].model.source, programs=programs)


def _store(
    context: Context, networks: Sequence[Prepared], entry: Entry, manifest: manifests.Manifest
) -> None:
    """Store the library in the database unless it is there."""
    with context.readers() as session:
        if libraries.library_of(session, entry.digest) is not None:
            return
    with context.sessions.begin() as session:
        libraries.ensure_library(
            session,
            libraries.NewLibrary(
                key=entry.digest,
                network_id=networks[0].network_id if len(networks) == 1 else None,
                target_id=networks[0].target_id,
                manifest=manifests.as_json(manifest),
                path=str(context.settings.cache_dir),
            ),
        )

"""Apply the history best to a network, compile what nobody compiled yet, and keep the library."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from records import bests, libraries
from records.bests import BestTrace
from records.tasks import WeightedTask
from tuner.build_cache.entries import Entry
from tuner.build_cache.keys import Key
from tuner.build_cache.opening import open_cache
from tuner.compile.object_compiler import Compiler, Objects, Step, SubgraphRequest
from tuner.context import Context
from tuner.engines.base import LinkRequest, LinkResult
from tuner.errors import RequestError, WorkError
from tuner.jobs.model_loading import check_file
from tuner.jobs.preparation import Prepared
from tuner.library import manifest as manifests
from tuner.library.folders import replace_folder
from tuner.workers.pool import CallTimeout, Pool

KIND = "library"
_LINK_TIMEOUT_SECS = 1800.0


@dataclass(frozen=True)
class BuildOptions:
    """How to build.

    Attributes:
        strict: Refuse when a subgraph has no record.
        explain: Find out why an object that has to be compiled was not in the cache.
        on_step: Function that receives each subgraph's step when its object is ready.
    """

    strict: bool = False
    explain: bool = False
    on_step: Callable[[Step], None] = lambda _: None


_PLAIN = BuildOptions()


@dataclass(frozen=True)
class Kept:
    """A library in the build cache.

    Attributes:
        entry: Holds it in the cache until it is closed.
        manifest: What it is, with the records of today.
        cached: Whether it was there before.
        steps: How each object came about; none if it was cached.
        compile_secs: What making it took, now or when it was made.
    """

    entry: Entry
    manifest: manifests.Manifest
    cached: bool
    steps: tuple[Step, ...]
    compile_secs: float

    def write_into(self, folder: Path) -> None:
        """Lay its files out in a folder that exists."""
        self.entry.write_into(folder)
        manifests.write(folder, self.manifest)


@dataclass(frozen=True)
class Built:
    """A library in ``folder``; the rest as in :class:`Kept`, ``secs`` what it took now."""

    folder: Path
    manifest: manifests.Manifest
    cached: bool
    steps: tuple[Step, ...]
    compile_secs: float
    secs: float

    @property
    def fallbacks(self) -> list[manifests.SubgraphEntry]:
        """Subgraphs without a record."""
        return [entry for entry in self.manifest.subgraphs if entry.record is None]


def build_library(
    context: Context,
    networks: Sequence[Prepared],
    worker: Pool,
    out: Path,
    options: BuildOptions = _PLAIN,
    best: Mapping[str, BestTrace] | None = None,
) -> Built:
    """Build prepared networks with their best records into ``out``, a program each.

    Args:
        context: Settings and database.
        networks: One network, or the same model for several sets of input shapes.
        worker: A process that may hold the whole network.
        out: Folder of the library; what it held is replaced when the new one is complete.
        options: How.
        best: Records by workload hash, in the place of the history best.

    Raises:
        RequestError: If ``out`` is in the way, the networks do not belong together, or
            ``options.strict`` and a record is missing.
        WorkError: If it cannot be compiled or written; ``out`` is as before.
    """
    check_out(out)
    started = time.perf_counter()
    kept = keep_library(context, networks, worker, options, best)
    with kept.entry:
        replace_folder(out, kept.write_into)
    return Built(
        folder=out,
        manifest=kept.manifest,
        cached=kept.cached,
        steps=kept.steps,
        compile_secs=kept.compile_secs,
        secs=time.perf_counter() - started,
    )


def keep_library(
    context: Context,
    networks: Sequence[Prepared],
    worker: Pool,
    options: BuildOptions = _PLAIN,
    best: Mapping[str, BestTrace] | None = None,
) -> Kept:
    """Build prepared networks into the build cache; see :func:`build_library`.

    Raises:
        RequestError: If the networks do not belong together, or ``options.strict`` and a
            record is missing.
        WorkError: If it cannot be compiled.
    """
    check_programs(networks)
    tasks = {task.workload_hash: task for network in networks for task in network.tasks}
    if best is None:
        best = best_of_tasks(context, list(tasks.values()))
    if options.strict:
        _check_complete(tasks, best)
    cache = open_cache(context.settings)
    key = _key(context, networks, best)
    target = networks[0].target
    compiler = Compiler(context, cache, target, worker, options.explain, options.on_step)
    build = _Build(compiler, networks, tasks, best)
    made = cache.get_or_make(key, build)
    described = manifests.parse(made.entry.read(manifests.MANIFEST), f"entry {key.digest[:12]}")
    _remember(context, networks, made.entry, described)
    return Kept(
        entry=made.entry,
        manifest=_with_records(described, best),
        cached=made.hit,
        steps=build.steps,
        compile_secs=float(made.entry.info["secs"]),
    )


def check_out(out: Path) -> None:
    """Refuse to replace anything but a library.

    Raises:
        RequestError: If ``out`` is a file or below one, or a folder that holds something else.
    """
    if out.is_file():
        raise RequestError(f"{out} is a file; name a folder for the library")
    if out.is_dir() and any(out.iterdir()) and not (out / manifests.MANIFEST).is_file():
        raise RequestError(f"{out} holds something that is no library; name another folder")
    above = next((folder for folder in out.absolute().parents if folder.exists()), None)
    if above is not None and not above.is_dir():
        raise RequestError(f"cannot write {out}: {above} is a file")


def check_programs(networks: Sequence[Prepared]) -> None:
    """Refuse networks that are not one model with several sets of input shapes.

    Raises:
        RequestError: If inputs or outputs have other names, or two sets are the same.
    """
    first = networks[0].model
    seen = set()
    for network in networks:
        model = network.model
        if (list(model.file.inputs), model.outputs) != (list(first.file.inputs), first.outputs):
            raise RequestError(
                f"{model.name} has other inputs or outputs than {first.name}: "
                "one library holds one model for several shapes"
            )
        shapes = tuple(model.file.inputs.items())
        if shapes in seen:
            raise RequestError(f"the same input shapes are given twice for {model.name}")
        seen.add(shapes)


def best_of_tasks(context: Context, tasks: Sequence[WeightedTask]) -> dict[str, BestTrace]:
    """Return the best record of each task that has one, by workload hash."""
    with context.readers() as session:
        found = bests.best_records(session, [task.task_id for task in tasks])
    return {task.workload_hash: found[task.task_id] for task in tasks if task.task_id in found}


def wanted_of(task: WeightedTask, best: Mapping[str, BestTrace]) -> SubgraphRequest:
    """Return what is to be compiled of a task: its best trace, or a fallback."""
    wanted = SubgraphRequest(task.workload_hash, task.name, task.task_id, flop=task.flop)
    known = best.get(task.workload_hash)
    if known is None:
        return wanted
    return replace(wanted, trace=known.trace, trace_hash=known.trace_hash)


@dataclass
class _Build:
    """Makes one library; ``steps`` then tells how its objects came about."""

    compiler: Compiler
    networks: Sequence[Prepared]
    tasks: Mapping[str, WeightedTask]
    best: Mapping[str, BestTrace]
    steps: tuple[Step, ...] = ()

    def __call__(self, folder: Path) -> Mapping[str, Any]:
        """Fill the folder of an entry."""
        started = time.perf_counter()
        wanted = [wanted_of(task, self.best) for task in self.tasks.values()]
        for network in self.networks:
            check_file(network.model)
        objects = self.compiler.objects(wanted)
        try:
            with self.compiler.cache.new_folder() as placed:
                linked = objects.write_into(placed)
                result = self._link(
                    LinkRequest(
                        models=tuple(network.model.file for network in self.networks),
                        target=self.compiler.target.spec,
                        objects=linked,
                        out=str(folder),
                    )
                )
            _check_outputs(self.networks, result)
            manifests.write(folder, self._describe(objects, result, folder))
        finally:
            objects.close()
        self.steps = objects.steps
        secs = time.perf_counter() - started
        reused = sum(step.secs for step in objects.steps if step.hit)
        return {"secs": secs + reused}

    def _link(self, request: LinkRequest) -> LinkResult:
        try:
            result: LinkResult = self.compiler.worker.call(
                self.compiler.context.settings.engine,
                "link_network",
                request,
                timeout_secs=_LINK_TIMEOUT_SECS,
            )
        except CallTimeout as error:
            raise WorkError(f"linking took longer than {_LINK_TIMEOUT_SECS:.0f} s") from error
        return result

    def _describe(self, objects: Objects, result: LinkResult, folder: Path) -> manifests.Manifest:
        first = self.networks[0]
        return manifests.Manifest(
            model_name=first.model.name,
            target=self.compiler.target.spec,
            device=dict(self.compiler.target.device),
            compiler=dict(self.compiler.target.compiler),
            outputs=first.model.outputs,
            programs=tuple(
                manifests.Program(
                    entry=program.entry,
                    network=network.model.sha256,
                    inputs=dict(network.model.file.inputs),
                    weights=program.weights,
                    calls=dict(program.calls),
                )
                for network, program in zip(self.networks, result.programs, strict=True)
            ),
            weights=result.weights,
            subgraphs=tuple(
                self._subgraph(task, objects.entries[workload], result)
                for workload, task in self.tasks.items()
            ),
            files={name: manifests.sha256_of(folder / name) for name in result.files},
            engine=self.compiler.context.settings.engine,
        )

    def _subgraph(
        self, task: WeightedTask, entry: Entry, result: LinkResult
    ) -> manifests.SubgraphEntry:
        best = self.best.get(task.workload_hash)
        return manifests.SubgraphEntry(
            name=task.name,
            workload=task.workload_hash,
            n_calls=sum(program.calls.get(task.workload_hash, 0) for program in result.programs),
            record=None if best is None else best.record_id,
            latency=None if best is None else best.latency,
            trace=None if best is None else best.trace_hash,
            entry=entry.digest,
            objects={name: file.sha256 for name, file in entry.files.items()},
        )


def _check_complete(tasks: Mapping[str, WeightedTask], best: Mapping[str, BestTrace]) -> None:
    missing = [task for workload, task in tasks.items() if workload not in best]
    if missing:
        raise RequestError(
            f"{len(missing)} of {len(tasks)} subgraphs have no record for this target, "
            f"the first is {missing[0].name} ({missing[0].workload_hash}); tune first, "
            "or build without --strict"
        )


def _check_outputs(networks: Sequence[Prepared], result: LinkResult) -> None:
    for network, program in zip(networks, result.programs, strict=True):
        if program.n_outputs != len(network.model.outputs):
            raise WorkError(
                f"the compiled network has {program.n_outputs} outputs, "
                f"the model {len(network.model.outputs)}"
            )


def _key(context: Context, networks: Sequence[Prepared], best: Mapping[str, BestTrace]) -> Key:
    target = networks[0].target
    workloads = {task.workload_hash for network in networks for task in network.tasks}
    return Key(
        KIND,
        {
            "networks": [network.model.sha256 for network in networks],
            "engine": context.settings.engine,
            "pipeline": target.pipeline,
            "target": target.spec,
            "device": dict(target.device),
            "compiler": dict(target.compiler),
            "traces": {
                workload: best[workload].trace_hash if workload in best else None
                for workload in workloads
            },
            "manifest": manifests.VERSION,
        },
        networks[0].model.name,
    )


def _with_records(
    described: manifests.Manifest, best: Mapping[str, BestTrace]
) -> manifests.Manifest:
    """Name the records of today: the same traces may have been measured again since."""
    subgraphs = tuple(
        replace(entry, record=best[entry.workload].record_id, latency=best[entry.workload].latency)
        if entry.record is not None
        else entry
        for entry in described.subgraphs
    )
    return replace(described, subgraphs=subgraphs)


def _remember(
    context: Context, networks: Sequence[Prepared], entry: Entry, described: manifests.Manifest
) -> None:
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
                manifest=manifests.as_json(described),
                path=str(context.settings.cache_dir),
            ),
        )

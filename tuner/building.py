"""Apply the history best to a network, compile it, and keep the library."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from records import bests, libraries
from records.errors import NoValidRecord
from records.models import BestRecord, MeasureRecord
from tuner.context import Context
from tuner.engines.base import CompileRequest, CompileResult
from tuner.errors import RequestError, WorkError
from tuner.executors.local import CallTimeout, Pool
from tuner.library import manifest as manifests
from tuner.library.store import Store, copy_into, key_of, replace_folder
from tuner.preparation import Prepared

_COMPILE_TIMEOUT_SECS = 1800.0


@dataclass(frozen=True)
class Best:
    """The best record of a workload: its id, trace, and latency in seconds."""

    record_id: int
    trace: str
    trace_hash: str
    latency: float


@dataclass(frozen=True)
class Built:
    """A library in ``folder``; ``cached`` if nothing had to be compiled."""

    folder: Path
    manifest: manifests.Manifest
    cached: bool

    @property
    def fallbacks(self) -> list[manifests.SubgraphEntry]:
        """Subgraphs without a record."""
        return [entry for entry in self.manifest.subgraphs if entry.record is None]


@dataclass(frozen=True)
class Kept:
    """A library in the compile cache, under its key; ``cached`` if it was there before."""

    key: str
    folder: Path
    best: Mapping[str, Best]
    cached: bool


def build_library(
    context: Context, prepared: Prepared, worker: Pool, out: Path, *, strict: bool
) -> Built:
    """Compile a prepared network with its best records into ``out``.

    Args:
        context: Settings and database.
        prepared: The network.
        worker: A process that may hold the whole network.
        out: Folder of the library; what it held is replaced when the new one is complete.
        strict: Refuse when a subgraph has no record.

    Raises:
        RequestError: If ``out`` is in the way, or ``strict`` and a record is missing.
        WorkError: If it cannot be compiled or written; ``out`` is as before.
    """
    check_out(out)
    kept = keep_library(context, prepared, worker, strict=strict)
    described = _with_records(manifests.read(kept.folder), kept.best)
    replace_folder(out, _copy_with(kept.folder, described))
    return Built(out, described, cached=kept.cached)


def keep_library(context: Context, prepared: Prepared, worker: Pool, *, strict: bool) -> Kept:
    """Compile a prepared network with its best records into the compile cache.

    Its manifest names the records of when it was compiled; see :func:`build_library` for
    what the arguments are.

    Raises:
        RequestError: If ``strict`` and a record is missing.
        WorkError: If it cannot be compiled or written.
    """
    best = best_of_tasks(context, prepared)
    missing = [task for task in prepared.tasks if task.workload_hash not in best]
    if strict and missing:
        raise RequestError(
            f"{len(missing)} of {len(prepared.tasks)} subgraphs have no record for this target, "
            f"the first is {missing[0].name} ({missing[0].workload_hash}); tune first, "
            "or build without --strict"
        )
    store = Store(context.settings.data_dir / "libraries")
    key = _key(context, prepared, best)
    found = store.find(key)
    folder = found or store.add(key, lambda made: _compile(context, prepared, best, worker, made))
    _remember(context, prepared, key, folder)
    return Kept(key, folder, best, cached=found is not None)


def check_out(out: Path) -> None:
    """Refuse to replace anything but a library.

    Raises:
        RequestError: If ``out`` is a file, or a folder that holds something else.
    """
    if out.is_file():
        raise RequestError(f"{out} is a file; name a folder for the library")
    if out.is_dir() and any(out.iterdir()) and not (out / manifests.MANIFEST).is_file():
        raise RequestError(f"{out} holds something that is no library; name another folder")


def best_of_tasks(context: Context, prepared: Prepared) -> dict[str, Best]:
    """Return the best record of each task that has one, by workload hash."""
    found = {}
    with context.readers() as session:
        for task in prepared.tasks:
            try:
                record = bests.best_record(
                    session, task.workload_hash, prepared.target_id, task.engine
                )
            except NoValidRecord:
                continue
            latency = session.get_one(BestRecord, task.task_id).latency
            found[task.workload_hash] = _best(record, latency)
    return found


def _best(record: MeasureRecord, latency: float) -> Best:
    return Best(record.id, record.trace, record.trace_hash, latency)


def _key(context: Context, prepared: Prepared, best: Mapping[str, Best]) -> str:
    return key_of(
        {
            "network": prepared.model.sha256,
            "engine": context.settings.engine,
            "pipeline": prepared.target.pipeline,
            "target": prepared.target.spec,
            "device": dict(prepared.target.device),
            "traces": {workload: record.trace_hash for workload, record in best.items()},
            "manifest": manifests.VERSION,
        }
    )


def _compile(
    context: Context, prepared: Prepared, best: Mapping[str, Best], worker: Pool, folder: Path
) -> None:
    request = CompileRequest(
        model=prepared.model.file,
        target=prepared.target.spec,
        traces={workload: record.trace for workload, record in best.items()},
        out=str(folder),
    )
    try:
        result: CompileResult = worker.call(
            context.settings.engine,
            "compile_network",
            request,
            timeout_secs=_COMPILE_TIMEOUT_SECS,
        )
    except CallTimeout as error:
        raise WorkError(f"compiling took longer than {_COMPILE_TIMEOUT_SECS:.0f} s") from error
    _check_outputs(prepared, result)
    manifests.write(folder, _describe(prepared, best, result, folder))


def _check_outputs(prepared: Prepared, result: CompileResult) -> None:
    if result.n_outputs != len(prepared.model.outputs):
        raise WorkError(
            f"the compiled network has {result.n_outputs} outputs, "
            f"the model {len(prepared.model.outputs)}"
        )


def _with_records(described: manifests.Manifest, best: Mapping[str, Best]) -> manifests.Manifest:
    """Name the records of today: the same traces may have been measured again since."""
    subgraphs = tuple(
        replace(
            entry,
            record=best[entry.workload].record_id,
            latency=best[entry.workload].latency,
        )
        if entry.record is not None
        else entry
        for entry in described.subgraphs
    )
    return replace(described, subgraphs=subgraphs)


def _copy_with(source: Path, described: manifests.Manifest) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        copy_into(source)(folder)
        manifests.write(folder, described)

    return write


def _describe(
    prepared: Prepared, best: Mapping[str, Best], result: CompileResult, folder: Path
) -> manifests.Manifest:
    return manifests.Manifest(
        network=prepared.model.sha256,
        model_name=prepared.model.name,
        target=prepared.target.spec,
        device=dict(prepared.target.device),
        inputs=dict(prepared.model.file.inputs),
        outputs=prepared.model.outputs,
        subgraphs=tuple(
            manifests.SubgraphEntry(
                name=subgraph.name,
                workload=subgraph.workload,
                n_calls=subgraph.n_calls,
                record=best[subgraph.workload].record_id if subgraph.tuned else None,
                latency=best[subgraph.workload].latency if subgraph.tuned else None,
            )
            for subgraph in result.subgraphs
        ),
        files={name: manifests.sha256_of(folder / name) for name in result.files},
    )


def _remember(context: Context, prepared: Prepared, key: str, folder: Path) -> None:
    with context.sessions.begin() as session:
        libraries.ensure_library(
            session,
            libraries.NewLibrary(
                key=key,
                network_id=prepared.network_id,
                target_id=prepared.target_id,
                manifest=asdict(manifests.read(folder)),
                path=str(folder),
            ),
        )

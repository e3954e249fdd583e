"""Recompilation of a library's objects from its manifest, compared byte by byte."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from sqlalchemy.orm import Session

from records.logs import other_targets
from tuner.build_cache.cache import open_local
from tuner.compile.object_compiler import ObjectCompiler
from tuner.compile.subgraphs import SubgraphRequest
from tuner.context import Context
from tuner.errors import RequestError, WorkError
from tuner.files.folders import replace_folder
from tuner.library import manifest as manifests
from tuner.library.manifest import Manifest, SubgraphEntry
from tuner.workers.pool import CallTimeout, Pool

if TYPE_CHECKING:
    from tuner.engines.base import TargetInfo

Outcome = Literal["identical", "differs", "cannot"]
_TIMEOUT_SECS = 600.0


@dataclass(frozen=True)
class RecompiledSubgraph:
    """One subgraph that was compiled again.

    Attributes:
        name: Name for people.
        workload: Hash of the workload.
        trace: Hash of the trace; None for a fallback.
        outcome: Comparison of its files with the manifest; ``cannot`` if it did not compile.
        why: Files that differ, or the reason why it cannot be compiled; empty if identical.
        objects: The sha256 of each compiled file, by file name.
    """

    name: str
    workload: str
    trace: str | None
    outcome: Outcome
    why: str
    objects: Mapping[str, str]


@dataclass(frozen=True)
class Reproduction:
    """A library whose objects were compiled again; ``out`` is the folder that keeps them."""

    model: str
    target: str
    subgraphs: tuple[RecompiledSubgraph, ...]
    out: Path | None

    def count(self, outcome: Outcome) -> int:
        """Return the number of subgraphs with an outcome."""
        return sum(1 for subgraph in self.subgraphs if subgraph.outcome == outcome)

    @property
    def identical(self) -> bool:
        """True if every subgraph has the bytes of the manifest."""
        return self.count("identical") == len(self.subgraphs)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a library from its file or from the library's folder.

    Raises:
        RequestError: If the manifest is missing or cannot be read.
    """
    if not path.exists():
        raise RequestError(f"{path} does not exist; name a library's folder or its manifest")
    return manifests.read(path) if path.is_dir() else manifests.read_file(path)


def reproduce(
    context: Context,
    manifest: Manifest,
    worker: Pool,
    out: Path | None = None,
    on_subgraph: Callable[[RecompiledSubgraph], None] = lambda _: None,
) -> Reproduction:
    """Compile every subgraph of a manifest again without the build cache.

    Workloads and traces are read from the database by their hashes, not by record ids, so any
    database that the records were imported to will do.

    Args:
        context: Settings and database.
        manifest: Manifest of the library.
        worker: Process that compiles.
        out: Empty or missing folder for the objects. The name of each file begins with the digest
            of its cache entry.
        on_subgraph: Function that receives each subgraph when it is compiled.

    Raises:
        RequestError: If this machine compiles for another target or with other versions, or
            ``out`` is not empty; nothing was compiled.
        WorkError: If ``out`` cannot be written.
    """
    if out is not None and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise RequestError(f"{out} already exists; choose an empty folder for the objects")
    answer = worker.call(
        context.settings.engine, "describe_target", manifest.target, timeout_secs=_TIMEOUT_SECS
    )
    target = cast("TargetInfo", answer)
    differences = [
        *_differences("", {"target": manifest.target}, {"target": target.spec}),
        *_differences("", manifest.device, target.device),
        *_differences("compiler ", manifest.compiler, target.compiler),
    ]
    if differences:
        raise RequestError(
            f"cannot reproduce {manifest.model_name} here: the build environment differs in "
            f"{'; '.join(differences)}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        compiler = ObjectCompiler(context, open_local(context.settings), target, worker)
        subgraphs = []
        for entry in manifest.subgraphs:
            subgraphs.append(_recompile(compiler, entry, top))
            on_subgraph(subgraphs[-1])
        if out is not None:
            replace_folder(out, lambda folder: _copy(top, folder))
    return Reproduction(manifest.model_name, manifest.target, tuple(subgraphs), out)


def _differences(prefix: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{prefix}{name} (was {then.get(name, 'missing')}, is {now.get(name, 'missing')})"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]


def _recompile(compiler: ObjectCompiler, entry: SubgraphEntry, top: Path) -> RecompiledSubgraph:
    """Compile one subgraph and compare its files; a failure becomes an outcome."""
    try:
        objects = _compile(compiler, entry, top)
    except WorkError as error:
        return RecompiledSubgraph(entry.name, entry.workload, entry.trace, "cannot", str(error), {})
    names = sorted(
        name
        for name in objects.keys() | entry.objects.keys()
        if objects.get(name) != entry.objects.get(name)
    )
    outcome: Outcome = "differs" if names else "identical"
    why = f"other bytes: {', '.join(names)}" if names else ""
    return RecompiledSubgraph(entry.name, entry.workload, entry.trace, outcome, why, objects)


def _compile(compiler: ObjectCompiler, entry: SubgraphEntry, top: Path) -> dict[str, str]:
    engine = compiler.context.settings.engine
    with compiler.context.readers() as session:
        request = _subgraph_request(session, entry, engine)
    digest = compiler.key_of(request).digest
    if digest != entry.entry:
        raise WorkError(
            f"the manifest names cache entry {entry.entry[:12] or 'none'}, but its data on the "
            f"subgraph yields {digest[:12]}: it was altered, or built by another engine"
        )
    # Named by the digest computed here: a name from the manifest could leave the folder.
    out = top / digest
    out.mkdir(exist_ok=True)
    with compiler.worker.exchange.new_output() as made:
        try:
            compiler.worker.call(
                engine,
                "compile_subgraph",
                compiler.object_request(request, made.path),
                timeout_secs=_TIMEOUT_SECS,
            )
        except CallTimeout as error:
            raise WorkError(f"compiling took longer than {_TIMEOUT_SECS:.0f} s") from error
        made.take(out)
    return {path.name: manifests.sha256_of(path) for path in sorted(out.iterdir())}


def _subgraph_request(session: Session, entry: SubgraphEntry, engine: str) -> SubgraphRequest:
    """Look up the workload and the trace of a subgraph.

    Raises:
        WorkError: If the database lacks one of them.
    """
    task_id = other_targets.task_of_workload(session, entry.workload, engine)
    if task_id is None:
        raise WorkError(
            f"workload {entry.workload} is not in this database; run `tuner tasks` with the "
            "model, or `tuner records import` with its records"
        )
    if entry.trace is None:
        return SubgraphRequest(entry.workload, entry.name, task_id)
    trace = other_targets.trace_text(session, entry.workload, engine, entry.trace)
    if trace is None:
        raise WorkError(
            f"this database has no record of {entry.workload} with trace {entry.trace}; "
            "run `tuner records import` with the records of the database that has it"
        )
    return SubgraphRequest(entry.workload, entry.name, task_id, trace, entry.trace)


def _copy(top: Path, folder: Path) -> None:
    for path in top.glob("*/*"):
        shutil.copyfile(path, folder / f"{path.parent.name}.{path.name}")

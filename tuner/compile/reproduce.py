"""Compile the objects of a library anew from its manifest, and compare them byte by byte."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from sqlalchemy.orm import Session

from records import other_targets
from tuner.build_cache.opening import open_local
from tuner.compile.object_compiler import Compiler, SubgraphRequest
from tuner.context import Context
from tuner.engines.base import TargetInfo
from tuner.errors import RequestError, WorkError
from tuner.library import manifest as manifests
from tuner.library.folders import replace_folder
from tuner.library.manifest import Manifest, SubgraphEntry
from tuner.workers.pool import CallTimeout, Pool

Verdict = Literal["identical", "differs", "cannot"]
_TIMEOUT_SECS = 600.0


@dataclass(frozen=True)
class Remade:
    """One subgraph that was compiled again.

    Attributes:
        name: What it computes.
        workload: Its hash.
        trace: Hash of the trace it was made from; None for a fallback.
        verdict: Whether its files are those of the manifest, byte by byte.
        why: What differs, or why it cannot be compiled; empty if it is identical.
        objects: The sha256 of each file that was made.
    """

    name: str
    workload: str
    trace: str | None
    verdict: Verdict
    why: str
    objects: Mapping[str, str]


@dataclass(frozen=True)
class Reproduced:
    """What compiling a library's objects anew came to; ``out`` is where they were kept."""

    model: str
    target: str
    subgraphs: tuple[Remade, ...]
    out: Path | None

    @property
    def n_identical(self) -> int:
        """Subgraphs whose bytes are those of the manifest."""
        return sum(1 for each in self.subgraphs if each.verdict == "identical")

    @property
    def identical(self) -> bool:
        """Whether all are."""
        return self.n_identical == len(self.subgraphs)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a library, given by its file or by the library's folder.

    Raises:
        RequestError: If there is none, or it cannot be read.
    """
    if not path.exists():
        raise RequestError(f"there is no {path}; name a library's folder or its manifest")
    return manifests.read(path) if path.is_dir() else manifests.read_file(path)


def reproduce(
    context: Context,
    manifest: Manifest,
    worker: Pool,
    out: Path | None = None,
    tell: Callable[[Remade], None] = lambda _: None,
) -> Reproduced:
    """Compile every subgraph of a manifest anew, without a look into the build cache.

    What is compiled comes out of the database: the subgraph by its hash, the trace by its own.
    Ids of records mean nothing here, so it may be a database that the records were imported to.

    Args:
        context: Settings and database.
        manifest: What was built.
        worker: A process that compiles.
        out: An empty or missing folder for the objects; each file's name begins with its entry's.
        tell: Hears of every subgraph.

    Raises:
        RequestError: If this machine compiles for another target or by other versions, or
            ``out`` is in the way; nothing was compiled.
        WorkError: If ``out`` cannot be written.
    """
    if out is not None and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise RequestError(f"{out} is there already; name an empty folder for the objects")
    target = _check_versions(context, manifest, worker)
    with tempfile.TemporaryDirectory(prefix="tuner-reproduce-") as scratch:
        top = Path(scratch)
        maker = _Maker(context, Compiler(context, open_local(context.settings), target, worker))
        remade = []
        for entry in manifest.subgraphs:
            remade.append(maker.remake(entry, top))
            tell(remade[-1])
        if out is not None:
            replace_folder(out, lambda folder: _copy(top, folder))
    return Reproduced(manifest.model_name, manifest.target, tuple(remade), out)


def _check_versions(context: Context, manifest: Manifest, worker: Pool) -> TargetInfo:
    asked = worker.call(
        context.settings.engine, "describe_target", manifest.target, timeout_secs=_TIMEOUT_SECS
    )
    target = cast("TargetInfo", asked)
    pairs = [
        *_differing("", {"target": manifest.target}, {"target": target.spec}),
        *_differing("", manifest.device, target.device),
        *_differing("compiler ", manifest.compiler, target.compiler),
    ]
    if pairs:
        raise RequestError(
            f"{manifest.model_name} was built where other things were there, and other bytes "
            f"would come of it here: {'; '.join(pairs)}"
        )
    return target


def _differing(prefix: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    return [
        f"{prefix}{name} was {there.get(name, 'not there')}, is {here.get(name, 'not there')}"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]


@dataclass(frozen=True)
class _Maker:
    """Compiles subgraphs out of the database."""

    context: Context
    compiler: Compiler

    def remake(self, entry: SubgraphEntry, top: Path) -> Remade:
        """Compile one subgraph and compare; what goes wrong is what is told of it."""
        try:
            objects = self._compile(entry, top)
        except WorkError as error:
            return Remade(entry.name, entry.workload, entry.trace, "cannot", str(error), {})
        names = sorted(
            name
            for name in objects.keys() | entry.objects.keys()
            if objects.get(name) != entry.objects.get(name)
        )
        why = f"other bytes: {', '.join(names)}" if names else ""
        verdict: Verdict = "differs" if names else "identical"
        return Remade(entry.name, entry.workload, entry.trace, verdict, why, objects)

    def _compile(self, entry: SubgraphEntry, top: Path) -> dict[str, str]:
        with self.context.readers() as session:
            wanted = self._wanted(session, entry)
        digest = self.compiler.key_of(wanted).digest
        if digest != entry.entry:
            raise WorkError(
                f"the manifest says entry {entry.entry[:12] or 'none'}, what it says of the "
                f"subgraph makes {digest[:12]}: it was altered, or built by another engine"
            )
        # By the digest that was made here: what a manifest says is no name for a folder.
        out = top / digest
        out.mkdir(exist_ok=True)
        try:
            self.compiler.worker.call(
                self.context.settings.engine,
                "compile_subgraph",
                self.compiler.request(wanted, out),
                timeout_secs=_TIMEOUT_SECS,
            )
        except CallTimeout as error:
            raise WorkError(f"compiling took longer than {_TIMEOUT_SECS:.0f} s") from error
        return {path.name: manifests.sha256_of(path) for path in sorted(out.iterdir())}

    def _wanted(self, session: Session, entry: SubgraphEntry) -> SubgraphRequest:
        """Find what was compiled.

        Raises:
            WorkError: If the database does not have it.
        """
        engine = self.context.settings.engine
        task_id = other_targets.task_of_workload(session, entry.workload, engine)
        if task_id is None:
            raise WorkError(
                f"the database has no workload {entry.workload}: tuner tasks with the model, "
                "or tuner records import with its records, brings it"
            )
        if entry.trace is None:
            return SubgraphRequest(entry.workload, entry.name, task_id)
        trace = other_targets.trace_text(session, entry.workload, engine, entry.trace)
        if trace is None:
            raise WorkError(
                f"the database has no record of {entry.workload} with trace {entry.trace}: "
                "tuner records import brings those of another database"
            )
        return SubgraphRequest(entry.workload, entry.name, task_id, trace, entry.trace)


def _copy(top: Path, folder: Path) -> None:
    for path in top.glob("*/*"):
        shutil.copyfile(path, folder / f"{path.parent.name}.{path.name}")

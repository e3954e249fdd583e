"""Libraries for the process that calls them: out of the build cache, or built into it."""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tuner
from tuner.building import Kept, keep_library
from tuner.context import Context, open_context
from tuner.errors import TargetError
from tuner.library.manifest import Manifest
from tuner.preparation import ModelRequest, prepare
from tuner.runtime import forks
from tuner.runtime.options import JitOptions
from tuner.workers import fresh_worker

if TYPE_CHECKING:
    from tuner.engines.relax.network import Library


@dataclass(frozen=True)
class Loaded:
    """A library in this process.

    Attributes:
        library: To be called.
        manifest: What it is.
        digest: Of its entry in the build cache; empty if it came from a service.
        cached: Whether it was built before.
        compile_secs: What building it took, now or then.
        secs: What it took to get it.
    """

    library: "Library"
    manifest: Manifest
    digest: str
    cached: bool
    compile_secs: float
    secs: float

    @property
    def n_fallbacks(self) -> int:
        """Subgraphs without a record."""
        return sum(each.record is None for each in self.manifest.subgraphs)


def get(
    options: JitOptions,
    reference: Path,
    name: str,
    inputs: Mapping[str, tuple[int, ...]],
    unless: str = "",
) -> Loaded | None:
    """Build a model with the best records known, and load it.

    Args:
        options: Where the records and the cache are.
        reference: A model file.
        name: Of the model, for people.
        inputs: Shapes for its dynamic inputs.
        unless: Digest of an entry that is loaded already.

    Returns:
        None if the best records still give the library ``unless``.

    Raises:
        RequestError: If the model or the target cannot be used.
        WorkError: If it cannot be compiled.
    """
    started = time.perf_counter()
    data_dir = None if options.data_dir is None else Path(options.data_dir)
    with open_context(options.database, data_dir) as context:
        kept = _keep(context, ModelRequest(str(reference), options.target, inputs, name=name))
        with kept.entry:
            if kept.entry.digest == unless:
                return None
            library = _load(kept)
    return Loaded(
        library=library,
        manifest=kept.manifest,
        digest=kept.entry.digest,
        cached=kept.cached,
        compile_secs=kept.compile_secs,
        secs=time.perf_counter() - started,
    )


def _keep(context: Context, request: ModelRequest) -> Kept:
    with fresh_worker(context.settings) as worker:
        prepared = prepare(request, context.settings, context.sessions, worker, must_run=True)
        if prepared.target.kind != "llvm":
            raise TargetError(f"tuner.jit runs on CPUs, and {request.target} is none")
        return keep_library(context, [prepared], worker)


def _load(kept: Kept) -> "Library":
    # The process keeps what it has mapped, whatever becomes of the files.
    with tempfile.TemporaryDirectory(prefix="tuner-jit-") as folder:
        kept.place(Path(folder))
        return load(Path(folder))


def load(folder: Path) -> "Library":
    """Load a library for good: its folder may go."""
    forks.note_library()
    return tuner.load(folder)

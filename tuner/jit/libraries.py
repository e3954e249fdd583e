"""Build libraries into the build cache, and load them into this process.

A worker is kept for a while after its use, since a second signature often follows a first: starting
a process that can compile takes a second or more, compiling a small function less.
"""

import atexit
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tuner.compile.build_library import CachedLibrary, build_into_cache
from tuner.context import Context, open_context
from tuner.errors import RequestError, TargetError, WorkError
from tuner.files.process_folder import shared_folder
from tuner.jit import forks
from tuner.jit.options import JitOptions
from tuner.jobs.preparation import prepare
from tuner.jobs.requests import ModelRequest
from tuner.library import loading
from tuner.library.manifest import Manifest
from tuner.settings import Settings, read_settings
from tuner.workers.confinement.sandbox_paths import Access, model_access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import CallTimeout, Pool

if TYPE_CHECKING:
    from tuner.engines.relax.network import Library

_TIMEOUT_SECS = 900.0

_MAX_IDLE_SECS = 15.0

_Kind = tuple[Settings, Access]
_lock = threading.Lock()
# By their settings, and the files that they may reach.
_spares: dict[_Kind, Pool] = {}


@contextmanager
def borrow_worker(settings: Settings, access: Access) -> Iterator[Pool]:
    """Yield a process that may load and compile a whole network, for the caller's use alone."""
    kind = (settings, access)
    with _lock:
        pool = _spares.pop(kind, None)
    if pool is None:
        pool = fresh_worker(settings, "jit", access)
    try:
        yield pool
    except BaseException:
        pool.close()
        raise
    with _lock:
        is_kept = kind not in _spares
        if is_kept:
            _spares[kind] = pool
    if not is_kept:
        pool.close()
        return
    timer = threading.Timer(_MAX_IDLE_SECS, _drop, (kind, pool))
    timer.daemon = True
    timer.start()


def _drop(kind: _Kind, pool: Pool) -> None:
    """Close a pool if it is still idle."""
    with _lock:
        if _spares.get(kind) is not pool:
            return
        del _spares[kind]
    pool.close()


@atexit.register
def _close_all() -> None:
    with _lock:
        pools = list(_spares.values())
        _spares.clear()
    for pool in pools:
        pool.close()


# In a forked child, these processes and the threads that serve them are the parent's.
os.register_at_fork(after_in_child=_spares.clear)


@dataclass(frozen=True)
class LoadedLibrary:
    """A library in this process.

    Attributes:
        library: The callable library.
        digest: Digest of its entry in the build cache; empty if it came from a service.
        cached: True if the build cache had it.
        compile_secs: Time of its build, now or earlier.
        secs: Time to get it now.
    """

    library: "Library"
    manifest: Manifest
    digest: str
    cached: bool
    compile_secs: float
    secs: float

    @property
    def n_fallbacks(self) -> int:
        """Number of subgraphs without a record."""
        return self.manifest.n_fallbacks


def build_and_load(
    options: JitOptions,
    reference: Path,
    name: str,
    inputs: Mapping[str, tuple[int, ...]],
    unless: str = "",
    kind: str = "",
) -> LoadedLibrary | None:
    """Build a model with its best records, and load it.

    Args:
        options: Target, database and data directory.
        name: Name of the model for people.
        inputs: Shapes of its dynamic inputs.
        unless: Digest of an entry that is loaded already.
        kind: Kind of the target that the arguments need, which is the target by default; empty for
            any, a CPU by default.

    Returns:
        The library; None if the best records still give the entry ``unless``.

    Raises:
        RequestError: If the model or the target cannot be used.
        WorkError: If it cannot be compiled.
    """
    started = time.perf_counter()
    with open_context(options.database, _data_dir(options)) as context:
        if context.settings.environment:
            raise RequestError(
                f"tuner.jit calls kernels in this process, where those of the engine "
                f"{context.settings.environment} do not run; unset TUNER_ENGINE"
            )
        target = options.target or kind or "llvm"
        kept = _keep(context, ModelRequest(str(reference), target, inputs, name=name), kind)
        with kept.entry:
            if kept.entry.digest == unless:
                return None
            library = _load(kept)
    return LoadedLibrary(
        library=library,
        manifest=kept.manifest,
        digest=kept.entry.digest,
        cached=kept.cached,
        compile_secs=kept.compile_secs,
        secs=time.perf_counter() - started,
    )


def is_better(new: LoadedLibrary, old: LoadedLibrary) -> bool:
    """Return whether a library built here should replace one that a service may have built."""
    return bool(old.digest) or new.n_fallbacks == 0


def call_in_worker(options: JitOptions, module: str, function: str, *args: Any) -> Any:
    """Call a function in a process of its own.

    Raises:
        TunerError: As the function raises it; WorkError if it takes too long or is lost.
    """
    settings = read_settings({"database": options.database, "data_dir": _data_dir(options)})
    # Not the spare worker: calls of the program must not wait for it, nor find torch in it.
    with fresh_worker(settings, "jit") as worker:
        try:
            return worker.call(module, function, *args, timeout_secs=_TIMEOUT_SECS)
        except CallTimeout as error:
            raise WorkError(f"{function} took longer than {_TIMEOUT_SECS:.0f} s") from error


class FileCopy:
    """A copy of a file that exists as long as this object."""

    def __init__(self, path: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix="jit-", dir=shared_folder()))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = folder / path.name
        shutil.copyfile(path, self.path)


def _data_dir(options: JitOptions) -> Path | None:
    return None if options.data_dir is None else Path(options.data_dir)


def _keep(context: Context, request: ModelRequest, kind: str) -> CachedLibrary:
    with borrow_worker(context.settings, model_access(request.reference)) as worker:
        prepared = prepare(request, context, worker, must_run=True)
        if kind and prepared.target.kind != kind:
            where = "a GPU" if kind == "cuda" else "the CPU"
            raise TargetError(f"the arguments are on {where}, and {request.target} is elsewhere")
        return build_into_cache(context, [prepared], worker)


def _load(kept: CachedLibrary) -> "Library":
    # The process keeps files that it has mapped, even when they are removed.
    with tempfile.TemporaryDirectory(prefix="tuner-jit-") as folder:
        kept.write_into(Path(folder))
        return load(Path(folder))


def load(folder: Path) -> "Library":
    """Load a library, whose folder may then be removed."""
    forks.note_library()
    return cast("Library", loading.load(folder))

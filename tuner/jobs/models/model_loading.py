"""Loading of models in a worker, so that the coordinator never holds their weights."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tuner.errors import MalformedAnswer, ModelError, WorkerLost, WorkError
from tuner.files.atomic_files import atomic_file
from tuner.networks.base import MAX_ONNX_BYTES, LoadedModel, file_hash, hash_with
from tuner.workers.exchange import OutputFolder
from tuner.workers.pool import CallTimeout, Pool
from tuner.workers.processes.pause_group import current_group

_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class LoadLimits:
    """Limits of loading a model.

    Attributes:
        secs: Time limit of each step, from reading the file to splitting the network.
        alone: True for a file of another user, see :func:`tuner.networks.load.load_network`.
        shortage: Returns the reason why a number of bytes has no disk space, or an empty text.
    """

    secs: float = 600.0
    alone: bool = False
    shortage: Callable[[int], str] = lambda _: ""


DEFAULT_LIMITS = LoadLimits()


def check_file(model: LoadedModel) -> None:
    """Check the cleaned file of a model, and remove a damaged one so that it is written again.

    Raises:
        WorkError: If the file is damaged or missing.
    """
    path = Path(model.file.path)
    try:
        if file_hash(path, model.file.inputs) == model.sha256:
            return
        path.unlink()
    except OSError as error:
        raise WorkError(f"cannot read {path}: {error.strerror or error}") from error
    raise WorkError(
        f"{path}, the cleaned model of {model.name}, was damaged and is removed; try again"
    )


@dataclass(frozen=True)
class ModelQuery:
    """Arguments of :func:`tuner.networks.load.load_network`."""

    reference: str
    inputs: Mapping[str, tuple[int, ...]]
    random_weights: int | None
    sizes: Mapping[str, int] = field(default_factory=dict)


def call_on_model(
    worker: Pool,
    module: str,
    function: str,
    *args: Any,
    limits: LoadLimits,
    subject: str,
    returns: Any = ...,
) -> Any:
    """Call a worker function that reads a model.

    Args:
        worker: Process of the call.
        args: Arguments of the function.
        subject: Name of the step for people.
        returns: Type of the value, see :meth:`Pool.submit`.

    Raises:
        ModelError: If the function refuses the model, takes too long, or crashes its process.
        WorkError: If the call failed, or the worker was killed.
    """
    try:
        return worker.call(module, function, *args, timeout_secs=limits.secs, returns=returns)
    except CallTimeout as error:
        raise ModelError(
            f"{subject} took longer than {limits.secs:g} s: use a smaller model, or raise the "
            "limit of the service",
            code="too-slow",
        ) from error
    except WorkerLost as error:
        if not error.crashed:
            raise
        raise ModelError(
            f"{subject} crashed its process: export the model to ONNX if it is a .pt2 file, and "
            "with another opset or in parts if it is not",
            code="importer-crashed",
        ) from error


def load_in(
    worker: Pool, folder: Path, query: ModelQuery, limits: LoadLimits = DEFAULT_LIMITS
) -> LoadedModel:
    """Load a model in a worker and keep its cleaned bytes in ``folder``.

    Raises:
        ModelError: If the model cannot be loaded.
        WorkError: If the worker is lost.
    """
    with worker.exchange.new_output() as made:
        arguments = (
            query.reference,
            dict(query.inputs),
            query.random_weights,
            str(made.path),
            limits.alone,
            dict(query.sizes),
        )
        loaded: LoadedModel = call_on_model(
            worker,
            "tuner.networks.worker",
            "load_model",
            *arguments,
            limits=limits,
            subject=f"loading {query.reference}",
            returns=LoadedModel,
        )
        folder.mkdir(parents=True, exist_ok=True)
        form = "pt2" if Path(query.reference).suffix.lower() == ".pt2" else "onnx"
        return _kept(loaded, form, made, folder, limits)


def _kept(
    loaded: LoadedModel, form: str, made: OutputFolder, folder: Path, limits: LoadLimits
) -> LoadedModel:
    """Copy the file of a loaded model into the folder of models, under the hash that it has.

    A parser may be at the mercy of the model, and its process may write the file as long as it
    lives: the bytes that are kept are those that were hashed.

    Raises:
        MalformedAnswer: If the worker named another file, or another hash, or the file is larger
            than a model of this format can be.
        WorkError: If the file cannot be copied, or there is too little disk space.
    """
    name = f"{loaded.sha256}.{form}"
    problem = f"loading {loaded.name} named another file or hash than its own"
    if loaded.file.format != form or Path(loaded.file.path) != made.path / name:
        raise MalformedAnswer(problem)
    digest = hashlib.sha256()
    try:
        with made.open(name) as source:
            n_bytes = os.fstat(source.fileno()).st_size
            if form == "onnx" and n_bytes > MAX_ONNX_BYTES:
                raise MalformedAnswer(f"loading {loaded.name} made a file of {n_bytes} bytes")
            if shortage := limits.shortage(n_bytes):
                raise WorkError(f"cannot keep {loaded.name}: {shortage}")
            with atomic_file(folder / name) as stream:
                for chunk in _chunks(source, n_bytes):
                    digest.update(chunk)
                    stream.write(chunk)
                if hash_with(digest, loaded.file.inputs) != loaded.sha256:
                    raise MalformedAnswer(problem)
    except OSError as error:
        raise WorkError(f"cannot keep {loaded.name}: {error.strerror or error}") from error
    return replace(loaded, file=replace(loaded.file, path=str(folder / name)))


def _chunks(source: IO[bytes], n_bytes: int) -> Iterator[bytes]:
    """Yield the first bytes of a file; wait while background work is paused."""
    group = current_group()
    while n_bytes and (chunk := source.read(min(n_bytes, _COPY_BYTES))):
        n_bytes -= len(chunk)
        yield chunk
        if group is not None:
            group.wait_until_running()

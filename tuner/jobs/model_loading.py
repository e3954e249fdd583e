"""Loading of models in a worker, so that the coordinator never holds their weights."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.errors import MalformedAnswer, ModelError, WorkerLost, WorkError
from tuner.networks.base import LoadedModel, file_hash
from tuner.workers.pool import CallTimeout, Pool

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class LoadLimits:
    """Limits of loading a model.

    Attributes:
        secs: Time limit of each step, from reading the file to splitting the network.
        alone: True for a file of another user, see :func:`tuner.networks.load.load_network`.
    """

    secs: float = 600.0
    alone: bool = False


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
        module: Module of the function.
        function: Name of the function.
        args: Arguments of the function.
        limits: Limits of the call.
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
            "with another opset or in parts if it is not; the log of the process has the details",
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
    arguments = (
        query.reference,
        dict(query.inputs),
        query.random_weights,
        str(folder),
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
    # A parser may be at the mercy of the model: only the file that it was to write is touched.
    expected = folder / f"{loaded.sha256}.{loaded.file.format}"
    if not _SHA256.fullmatch(loaded.sha256) or Path(loaded.file.path) != expected:
        raise MalformedAnswer(f"loading {query.reference} named another file than its own")
    return loaded

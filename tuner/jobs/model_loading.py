"""Loading of models in a worker, so that the coordinator never holds their weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import WorkError
from tuner.networks.base import LoadedModel, file_hash
from tuner.workers.pool import CallTimeout, Pool


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


def load_in(
    worker: Pool,
    folder: Path,
    reference: str,
    inputs: Mapping[str, tuple[int, ...]],
    random_weights: int | None,
    limits: LoadLimits = DEFAULT_LIMITS,
) -> LoadedModel:
    """Load a model in a worker and keep its cleaned bytes in ``folder``.

    Raises:
        ModelError: If the model cannot be loaded.
        WorkError: If loading takes too long or the worker is lost.
    """
    try:
        loaded: LoadedModel = worker.call(
            "tuner.networks.worker",
            "load_model",
            reference,
            dict(inputs),
            random_weights,
            str(folder),
            limits.alone,
            timeout_secs=limits.secs,
        )
    except CallTimeout as error:
        raise WorkError(f"loading {reference} took longer than {limits.secs:g} s") from error
    return loaded

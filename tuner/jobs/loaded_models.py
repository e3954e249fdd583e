"""What the coordinator knows of a loaded model; it never holds the weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import WorkError
from tuner.networks.base import LoadedModel, file_hash
from tuner.workers.pool import CallTimeout, Pool


@dataclass(frozen=True)
class LoadLimits:
    """How far the loading of a model may go.

    Attributes:
        secs: Each step of it may take, from reading the file to splitting the network.
        alone: The file comes from somebody else, see :func:`tuner.networks.load.load_network`.
    """

    secs: float = 600.0
    alone: bool = False


OUR_OWN = LoadLimits()


def check_file(model: LoadedModel) -> None:
    """Refuse a cleaned file that is not what was written; it is removed, and then made again.

    Raises:
        WorkError: If it is damaged or gone.
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
    limits: LoadLimits = OUR_OWN,
) -> LoadedModel:
    """Load a model in a worker and keep its cleaned bytes in ``folder``.

    Raises:
        ModelError: If it cannot be loaded.
        WorkError: If that takes too long or the worker is lost.
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

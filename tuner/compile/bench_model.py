"""The model that peers run in a benchmark: the user's own file, proven to be the library's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.build_cache.opening import open_local
from tuner.errors import ModelError, RequestError
from tuner.jobs import model_cache
from tuner.jobs.model_loading import ModelQuery
from tuner.library.manifest import Manifest, Program, Source
from tuner.networks.base import LoadedModel, ModelFacts, ValueRange
from tuner.networks.originals import Original
from tuner.settings import Settings
from tuner.workers.confinement.sandbox_paths import model_access, models_folder
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_TIMEOUT_SECS = 600.0


@dataclass(frozen=True)
class BenchModel:
    """The model of a library, before cleaning, and facts about it.

    Attributes:
        original: File for the peers.
        facts: Plausible inputs and precision.
    """

    original: Original
    facts: ModelFacts

    @property
    def ranges(self) -> Mapping[str, ValueRange]:
        """Values of whole-number inputs, by name."""
        return self.facts.ranges


def load_bench_model(
    settings: Settings,
    described: Manifest,
    program: Program,
    model: str | None,
    random_weights: int | None,
    folder: Path,
) -> BenchModel:
    """Find the model of a library and check that it is the one that the library was built from.

    Args:
        settings: Data directory.
        described: Manifest of the library.
        program: Program whose input shapes the model gets.
        model: Path of a model file, or ``zoo:NAME``; None for a zoo network that the manifest
            names.
        random_weights: Seed of random weights; None for what the manifest says.
        folder: Folder for a model that must be written.

    Raises:
        RequestError: If the model is needed, cannot be read, or is another one.
    """
    reference = model if model is not None else _reference(described)
    seed = described.source.random_weights if random_weights is None else random_weights
    zoo = reference.startswith("zoo:")
    shapes = {name: shape for name, (shape, _) in program.inputs.items()}
    values = program.values.items()
    shapes |= {name: value if isinstance(value, tuple) else (value,) for name, value in values}
    query = ModelQuery(reference, {} if zoo else shapes, seed)
    with fresh_worker(
        settings, access=replace(model_access(reference), writes=(folder,))
    ) as worker:
        loaded = _load(settings, worker, query, described)
        _check_same(described, program, loaded)
        original = worker.call(
            "tuner.networks.originals",
            "write_original",
            reference,
            dict(program.inputs),
            seed,
            str(folder),
            dict(program.values),
            timeout_secs=_TIMEOUT_SECS,
            returns=Original,
        )
        facts = worker.call(
            "tuner.networks.worker",
            "describe_inputs",
            loaded.file,
            timeout_secs=_TIMEOUT_SECS,
            returns=ModelFacts,
        )
    return BenchModel(original, facts)


def _reference(described: Manifest) -> str:
    if described.source.name.startswith("zoo:"):
        return described.source.name
    raise RequestError(
        f"a comparison needs the model of the library, {_named(described)}", field="source"
    )


def _load(settings: Settings, worker: Pool, query: ModelQuery, described: Manifest) -> LoadedModel:
    """Load a model with the shapes of the library; a model that cannot have them is another."""
    cache, folder = open_local(settings), models_folder(settings.data_dir)
    try:
        return model_cache.load(cache, worker, folder, query)
    except ModelError as error:
        if error.field == "input":
            raise _another(described, f"; {error.text}") from error
        raise


def _check_same(described: Manifest, program: Program, loaded: LoadedModel) -> None:
    """Accept the very file, or one that is cleaned to the same network."""
    if loaded.sha256 == program.network:
        return
    source, own = described.source, loaded.source
    if own.random_weights != source.random_weights:
        raise _another(
            described,
            f" with {_weights(source)}, not {_weights(own)}",
        )
    if not source.sha256 or own.sha256 != source.sha256:
        raise _another(described, "")


def _weights(source: Source) -> str:
    if source.random_weights is None:
        return "its own weights"
    return f"random weights of seed {source.random_weights}"


def _another(described: Manifest, text: str) -> RequestError:
    return RequestError(f"the library was built from another network, {_named(described)}{text}")


def _named(described: Manifest) -> str:
    """Return the name of the library's network, and of its file as far as it is known."""
    source = described.source
    hashed = f", sha256 {source.sha256[:12]}..." if source.sha256 else ""
    return f"{described.model_name} ({source.name}{hashed})"

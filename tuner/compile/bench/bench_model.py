"""The model that peers run in a benchmark, proven to be the library's, and the inputs of both."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tuner.build_cache.cache import open_local
from tuner.devices.target_matching import kind_named
from tuner.errors import ModelError, RequestError
from tuner.jobs.models import model_cache
from tuner.jobs.models.model_loading import ModelQuery
from tuner.library import constant_inputs
from tuner.library.arrays import Array, read_arrays
from tuner.library.manifest import Inputs, Manifest, Program, Source
from tuner.networks.base import LoadedModel, ModelFacts, ValueRange
from tuner.networks.originals import Original
from tuner.settings import Settings
from tuner.workers.confinement.sandbox_paths import model_access, models_folder
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_TIMEOUT_SECS = 600.0

_NO_RANGES: Mapping[str, ValueRange] = {}


def draw_inputs(
    inputs: Inputs, seed: int, ranges: Mapping[str, ValueRange] = _NO_RANGES
) -> dict[str, Array]:
    """Draw inputs: floats uniform in [0, 1), whole numbers in their ranges, or else 0 or 1.

    Args:
        inputs: Shape and dtype by input name.
        ranges: Values that whole numbers and booleans may take, by input name.
    """
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, (shape, dtype) in inputs.items():
        if not dtype.startswith(("int", "uint", "bool")):
            arrays[name] = rng.random(size=shape).astype(_dtype(dtype))
            continue
        values = ranges.get(name, ValueRange(0, 1, ""))
        arrays[name] = rng.integers(values.low, values.high, size=shape, endpoint=True).astype(
            dtype
        )
    return arrays


def read_inputs(path: Path) -> dict[str, Array]:
    """Read the arrays of a ``.npz`` file by input name.

    Raises:
        RequestError: If the file is missing or is not a ``.npz`` file of numbers.
    """
    try:
        return read_arrays(path)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, BadZipFile, EOFError) as error:
        raise RequestError(
            f"{path} is not a .npz file of arrays by input name: write it with numpy.savez"
        ) from error


def without_constants(
    described: Manifest,
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Array] | None,
) -> tuple[dict[str, tuple[int, ...]], dict[str, Array] | None]:
    """Return what is given for inputs that are not constants of a library.

    Raises:
        RequestError: If one that is a constant has another value.
    """
    try:
        return (
            constant_inputs.without_constant_shapes(described, shapes),
            None if arrays is None else constant_inputs.without_constants(described, arrays),
        )
    except ValueError as error:
        raise RequestError(f"{error}") from error


def choose_program(
    described: Manifest,
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Array] | None,
) -> Program:
    """Return the program of a library for some inputs; the first if nothing decides.

    Args:
        shapes: Shape of some inputs by name.
        arrays: An array for each input; None if they are drawn.

    Raises:
        RequestError: If no program takes these inputs.
    """
    known = described.programs[0].inputs
    unknown = next((name for name in (*shapes, *(arrays or {})) if name not in known), None)
    if unknown is not None:
        raise RequestError(
            f"the library has no input {unknown!r}; its inputs are {', '.join(known)}"
        )
    for name in known if arrays is not None else ():
        if name not in (arrays or {}):
            raise RequestError(f"input {name!r} is missing; the library takes {', '.join(known)}")
    given = {name: array.shape for name, array in (arrays or {}).items()} | dict(shapes)
    for program in described.programs:
        if all(program.inputs[name][0] == shape for name, shape in given.items()):
            for name, array in (arrays or {}).items():
                dtype = program.inputs[name][1]
                if array.dtype != _dtype(dtype):
                    raise RequestError(f"input {name!r} must have dtype {dtype}, got {array.dtype}")
            return program
    accepted = " or ".join(
        ", ".join(f"{name} {list(shape)}" for name, (shape, _) in program.inputs.items())
        for program in described.programs
    )
    shown = ", ".join(f"{name} {list(shape)}" for name, shape in given.items())
    raise RequestError(f"the library takes {accepted}, not {shown}")


def choose_run(
    described: Manifest,
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Array] | None,
) -> tuple[Program, Inputs]:
    """Return the program for some inputs, and what it is called with before padding.

    Raises:
        RequestError: If no program takes these inputs, padded or not.
    """
    buckets = described.buckets
    if buckets is None:
        program = choose_program(described, shapes, arrays)
        return program, program.inputs
    given = {name: array.shape for name, array in (arrays or {}).items()} | dict(shapes)
    try:
        sizes = buckets.sizes_of(given)
        fitting = buckets.fit(sizes)
    except ValueError as error:
        raise RequestError(f"{error}") from error
    program = choose_program(
        described,
        buckets.resized(shapes, fitting),
        None if arrays is None else buckets.pad(arrays, fitting),
    )
    called = buckets.resized({name: shape for name, (shape, _) in program.inputs.items()}, sizes)
    return program, {name: (called[name], dtype) for name, (_, dtype) in program.inputs.items()}


@dataclass(frozen=True)
class Called:
    """A library or its profile, and the inputs that it is called with.

    Attributes:
        name: Path of its folder or file.
        target: Target that it was built for.
        inputs: Shape and dtype of each input.
    """

    name: Path
    target: str
    inputs: Inputs


def require_comparable(a: Called, b: Called, field: str | None = None) -> None:
    """Require that two libraries run on one kind of device, and take the same inputs.

    Raises:
        RequestError: If they do not; the error is about the field.
    """
    kinds = [kind_named(each.target) for each in (a, b)]
    if kinds[0] != kinds[1]:
        raise RequestError(
            f"{a.name} is of the target {kinds[0]}, and {b.name} of {kinds[1]}", field=field
        )
    if a.inputs != b.inputs:
        shown = [
            ", ".join(
                f"{name} {dtype}[{','.join(map(str, shape))}]"
                for name, (shape, dtype) in each.inputs.items()
            )
            for each in (a, b)
        ]
        raise RequestError(
            f"{a.name} takes the inputs {shown[0]}, and {b.name} takes {shown[1]}", field=field
        )


def padded(described: Manifest, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Pad arrays to the buckets of a library; without buckets, return them as they are."""
    if described.buckets is None:
        return dict(arrays)
    sizes = described.buckets.sizes_of({name: array.shape for name, array in arrays.items()})
    return described.buckets.pad(arrays, described.buckets.fit(sizes))


def _dtype(name: str) -> np.dtype[Any]:
    """Return a dtype by name, bfloat16 too."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


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

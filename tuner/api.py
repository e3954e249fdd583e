"""What a notebook does with networks: the commands as functions, with the same answers.

What they return has ``show()``, which prints what the command prints, and ``as_json()``.
"""

from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex, Unpack, cast

from tuner.cli.backends import execution
from tuner.cli.rendering.reports import BuildReport, ExtractReport, TuneReport
from tuner.compile.benchmark import Comparison
from tuner.compile.build_library import BuildOptions, check_out
from tuner.context import SettingOverrides
from tuner.jobs.goals import Goal
from tuner.jobs.known_models import ModelQuery
from tuner.jobs.preparation import ModelRequest
from tuner.jobs.requests import TuneRequest, model_requests

Inputs = Mapping[str, Sequence[SupportsIndex]]
_SETTINGS = frozenset(SettingOverrides.__annotations__)


class TuneFields(SettingOverrides, total=False):
    """Options of :func:`tune`; see :class:`tuner.jobs.requests.TuneRequest`."""

    trials: int | None
    seconds: float | None
    trials_per_round: int | None
    allocator: str
    goal: Goal
    priority: int | None
    least_gain_secs: float | None
    cost_model: str
    evaluator: Mapping[str, Any]
    build_timeout_secs: float
    seed: int


def extract(
    model: str | Path,
    *,
    target: str = "llvm",
    inputs: Inputs | None = None,
    definitions: bool = False,
    random_weights: int | None = None,
    **place: Unpack[SettingOverrides],
) -> ExtractReport:
    """Split a network into its weighted tasks, and store them.

    >>> import tuner
    >>> tuner.extract("zoo:resnet-18").show()  # doctest: +SKIP

    Args:
        model: A ``.onnx`` or ``.pt2`` file, or ``zoo:NAME``.
        target: As ``--target`` takes it.
        inputs: Shapes of inputs with dynamic dimensions.
        definitions: Whether to say what each task computes.
        random_weights: Seed to replace the weights with; None keeps them.
        **place: Settings: database, data_dir, engine and so on.

    Raises:
        RequestError: If the model or the target cannot be used.
    """
    (request,) = _requests([model], target, inputs, random_weights)
    return execution.split(request, place, definitions=definitions)


def tune(
    *models: str | Path,
    target: str = "llvm",
    inputs: Inputs | None = None,
    random_weights: int | None = None,
    **options: Unpack[TuneFields],
) -> TuneReport:
    """Spend trials on a network, or several in one job, where they shorten it most.

    Every trial is stored as soon as it is measured. Interrupt it whenever you like; the same call
    goes on where it was.

    >>> import tuner
    >>> tuner.tune("zoo:resnet-18", trials=1000).show()  # doctest: +SKIP

    Args:
        *models: ``.onnx`` or ``.pt2`` files, or ``zoo:NAME``.
        target: As ``--target`` takes it.
        inputs: Shapes of inputs with dynamic dimensions.
        random_weights: Seed to replace the weights with; None keeps them.
        **options: Budget and the rest, and settings: database, data_dir, engine and so on.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
        WorkError: If nothing could be measured.
    """
    if not models:
        raise TypeError("name a model to tune")
    first, *more = _requests(models, target, inputs, random_weights)
    given: dict[str, Any] = dict(options)
    place = cast("SettingOverrides", {key: given.pop(key) for key in _SETTINGS & set(given)})
    request = TuneRequest(first, tuple(more), **given)
    (tuned,) = execution.tune(request, place)
    return tuned


def build(
    model: str | Path,
    out: str | Path,
    *,
    target: str = "llvm",
    inputs: Inputs | Sequence[Inputs] | None = None,
    strict: bool = False,
    random_weights: int | None = None,
    **place: Unpack[SettingOverrides],
) -> BuildReport:
    """Compile a network with the best record of each task into a folder.

    >>> import tuner
    >>> tuner.build("zoo:resnet-18", "resnet-18.lib").show()  # doctest: +SKIP

    Args:
        model: A ``.onnx`` or ``.pt2`` file, or ``zoo:NAME``.
        out: Folder of the library; a library in it is replaced.
        target: As ``--target`` takes it.
        inputs: Shapes of inputs with dynamic dimensions; several sets give a program each.
        strict: Whether a task without a record is an error.
        random_weights: Seed to replace the weights with; None keeps them.
        **place: Settings: database, data_dir, engine and so on.

    Raises:
        RequestError: If the request is wrong; ``out`` is as before.
        WorkError: If it cannot be compiled; ``out`` is as before.
    """
    check_out(Path(out))
    requests = _requests([model], target, inputs, random_weights)
    return execution.build(requests, Path(out), place, BuildOptions(strict))


def evaluate(
    library: str | Path,
    *,
    model: str | Path | None = None,
    inputs: Inputs | None = None,
    random_weights: int | None = None,
    n_turns: int = 10,
    seed: int = 0,
    **place: Unpack[SettingOverrides],
) -> Comparison:
    """Time a library in a process that does nothing else.

    With its model, its outputs are compared with those of ONNX Runtime or torch, and both are
    timed in turns.

    >>> import tuner
    >>> found = tuner.evaluate("resnet-18.lib")  # doctest: +SKIP
    >>> found.mean_secs, found.stdev_secs  # doctest: +SKIP

    Args:
        library: Folder that was built.
        model: What it was built from; None: nothing is compared.
        inputs: As the library was built with.
        random_weights: As the library was built with.
        n_turns: Turns, each of about a tenth of a second.
        seed: Seeds the random inputs.
        **place: Settings: data_dir and so on.

    Raises:
        RequestError: If the library is missing, damaged, or of another network than the model.
    """
    wanted = None if model is None else ModelQuery(str(model), _plain(inputs or {}), random_weights)
    return execution.bench(Path(library), wanted, place, n_turns=n_turns, seed=seed)


def _requests(
    models: Sequence[str | Path],
    target: str,
    inputs: Inputs | Sequence[Inputs] | None,
    random_weights: int | None,
) -> list[ModelRequest]:
    given = [inputs] if isinstance(inputs, Mapping) else list(inputs or ())
    sets = [_plain(each) for each in given] or [{}]
    return model_requests([str(model) for model in models], target, sets, random_weights)


def _plain(inputs: Inputs) -> dict[str, tuple[int, ...]]:
    """Return shapes as tuples of Python's integers, whatever sequences and integers they are."""
    return {name: tuple(map(index, shape)) for name, shape in inputs.items()}

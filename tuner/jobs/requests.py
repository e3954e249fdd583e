"""Requests of users: models with their input shapes, and the options of the job that tunes them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.errors import ModelError, RequestError
from tuner.jobs.buckets import NOT_PADDED, Buckets, Padded
from tuner.jobs.spec import TuneSpec

_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True)
class ModelRequest:
    """A model as a user names it.

    Attributes:
        reference: Path of a model file, or ``zoo:NAME``.
        target: Target as a user writes it.
        inputs: Shapes for dynamic inputs.
        random_weights: Seed to replace the weights with; None keeps them.
        name: Name for people; empty for one derived from the reference.
        buckets: Sizes of dynamic dimensions; a program of the network is tuned and built for each
            combination.
        masks: Value of the padding in inputs that mark what is padded, by input name.
    """

    reference: str
    target: str = "llvm"
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    random_weights: int | None = None
    name: str = ""
    buckets: Buckets = field(default_factory=dict)
    masks: Mapping[str, float] = field(default_factory=dict)

    @property
    def dimensions(self) -> dict[str, int]:
        """Sizes of the dynamic dimensions that have exactly one."""
        return {name: sizes[0][0] for name, sizes in self.buckets.items() if len(sizes) == 1}

    @property
    def weight(self) -> float:
        """Relative frequency of the sizes of :attr:`dimensions`."""
        weights = (sizes[0][1] for sizes in self.buckets.values() if len(sizes) == 1)
        return math.prod(weights)


@dataclass(frozen=True)
class TuneRequest:
    """Models that one job tunes together, at least one, and the options of the job.

    ``started`` is the time by the monotonic clock from which the seconds of a run count; None for
    that of the call. ``command`` is the command line of the run, if it has one.
    """

    models: tuple[ModelRequest, ...]
    spec: TuneSpec = field(default_factory=TuneSpec)
    started: float | None = None
    command: str = ""


def model_requests(
    models: Sequence[str],
    target: str,
    sets: Sequence[Mapping[str, tuple[int, ...]]],
    random_weights: int | None,
    padded: Padded = NOT_PADDED,
) -> tuple[ModelRequest, ...]:
    """Return every model with every set of input shapes.

    Raises:
        RequestError: If there are several sets and buckets.
    """
    requests = (
        ModelRequest(model, target, {}, random_weights, "", padded.buckets, padded.masks)
        for model in models
    )
    return tuple(each for request in requests for each in in_sets(request, sets))


def in_sets(
    model: ModelRequest, sets: Sequence[Mapping[str, tuple[int, ...]]]
) -> list[ModelRequest]:
    """Return a model with each set of input shapes, whose sizes are part of the name.

    Raises:
        RequestError: If there are several sets and buckets.
    """
    if len(sets) == 1:
        return [replace(model, inputs=sets[0])]
    if model.buckets:
        raise RequestError("give one shape per input, or leave the buckets out", field="input")
    name = model.name or model.reference
    return [replace(model, inputs=shapes, name=_name(name, shapes)) for shapes in sets]


def parse_inputs(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read the input shapes of a model, one ``NAME=1,3,224,224`` per input.

    Raises:
        ModelError: If a text cannot be read.
        RequestError: If an input is named twice.
    """
    sets = parse_input_sets(texts)
    if len(sets) > 1:
        raise RequestError("an input is given twice; give one shape per input", field="input")
    return sets[0]


def parse_input_sets(texts: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
    """Read sets of input shapes; a name that occurs again begins the next set.

    Raises:
        ModelError: If a text cannot be read.
        RequestError: If the sets do not name the same inputs.
    """
    sets: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in map(parse_input, texts):
        if name in sets[-1]:
            sets.append({})
        sets[-1][name] = shape
    for shapes in sets:
        if set(shapes) != set(sets[0]):
            raise RequestError(
                f"{len(sets)} sets of shapes, of which one names {', '.join(shapes)} and the first "
                f"{', '.join(sets[0])}; name the same inputs in every set",
                field="input",
            )
    return sets


def parse_input(text: str) -> tuple[str, tuple[int, ...]]:
    """Read one input shape, such as ``NAME=1,3,224,224``, or one value, such as ``NAME=true``.

    A name may itself hold ``=``.

    Raises:
        ModelError: If the text has another form, or one of several dimensions is below 0.
    """
    name, equals, sizes = text.rpartition("=")
    try:
        flag = _FLAGS.get(sizes.lower())
        shape = tuple(map(int, sizes.split(","))) if flag is None else (flag,)
    except ValueError:
        shape = ()
    if not (name and equals and shape):
        raise ModelError(
            f"cannot read {text!r}: expected NAME=1,3,224,224, or a whole number, true or false as "
            "the value of an input of one element",
            field="input",
            code="input-shape",
        )
    # A single number may be the value of a scalar.
    if len(shape) > 1 and min(shape) < 0:
        raise ModelError(
            f"every dimension must be at least 0, got {text!r}", field="input", code="input-shape"
        )
    return name, shape


def _name(model: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Name a model that is requested with several sets of shapes."""
    sizes = ",".join("x".join(map(str, shape)).lower() for shape in shapes.values())
    return f"{Path(model).stem}@{sizes}"

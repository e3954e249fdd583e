"""Programs of a network: one for each combination of the sizes of its dynamic dimensions."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.errors import ModelError, RequestError
from tuner.jobs.buckets import AUTO, Buckets
from tuner.jobs.models.model_loading import DEFAULT_LIMITS, LoadLimits, call_on_model
from tuner.jobs.requests import ModelRequest
from tuner.networks.shapes import DynamicDimension, unknown_dimension
from tuner.workers.pool import Pool

MAX_PROGRAMS = 64
#: Sizes of a dimension whose sizes the user leaves to the tuner.
BATCH_SIZES = (1, 2, 4, 8, 16)
OTHER_SIZES = (32, 64, 128, 256)


def read_dimensions(
    reference: str, worker: Pool, limits: LoadLimits = DEFAULT_LIMITS
) -> tuple[DynamicDimension, ...]:
    """Read the dynamic dimensions of a model in a worker.

    Raises:
        ModelError: If the model cannot be read.
        WorkError: If the worker is lost.
    """
    dimensions: tuple[DynamicDimension, ...] = call_on_model(
        worker,
        "tuner.networks.worker",
        "read_dimensions",
        reference,
        limits.alone,
        limits=limits,
        subject=f"reading {reference}",
        returns=tuple[DynamicDimension, ...],
    )
    return dimensions


def programs_of(
    request: ModelRequest, dimensions: Sequence[DynamicDimension]
) -> tuple[ModelRequest, ...]:
    """Return a request for each program of a model, each with one size for every dimension.

    Args:
        request: The model with its buckets, at least one.

    Raises:
        RequestError: If a dimension is unknown or has no sizes, or there are too many programs.
    """
    buckets = _complete(request, dimensions)
    n_programs = math.prod(map(len, buckets.values()))
    if n_programs > MAX_PROGRAMS:
        counts = " x ".join(f"{len(sizes)} sizes of {name}" for name, sizes in buckets.items())
        raise RequestError(
            f"{counts} are {n_programs} programs, and a library has at most {MAX_PROGRAMS}; "
            "choose fewer sizes",
            field="bucket",
        )
    programs = []
    for pairs in itertools.product(*buckets.values()):
        single = {name: (pair,) for name, pair in zip(buckets, pairs, strict=True)}
        shown = ",".join(f"{name}={size}" for name, ((size, _),) in single.items())
        name = f"{request.name or Path(request.reference).stem}@{shown}"
        programs.append(replace(request, buckets=single, name=name))
    return tuple(programs)


def _complete(request: ModelRequest, dimensions: Sequence[DynamicDimension]) -> Buckets:
    """Return the sizes of every dynamic dimension, in the order of the model."""
    by_name = {dimension.name: dimension for dimension in dimensions}
    if not dimensions:
        raise ModelError(
            "the shapes of the model are fixed, so that it takes no buckets",
            field="bucket",
            code="input-shape",
        )
    summed = [name for name in request.buckets if name in by_name and by_name[name].parts]
    if summed:
        parts = " and ".join(map(repr, by_name[summed[0]].parts))
        raise RequestError(
            f"the dimension {summed[0]!r} follows from {parts}; give sizes of these", field="bucket"
        )
    unknown = [name for name in request.buckets if name not in by_name and name != AUTO]
    if unknown:
        raise unknown_dimension(unknown[0], by_name)
    buckets = {}
    for name, dimension in by_name.items():
        if dimension.parts:
            continue
        given = [key for key in dimension.axes if key in request.inputs]
        if name in request.buckets and given:
            raise RequestError(
                f"input {given[0]!r} has a shape, and its dimension {name!r} has buckets; "
                "leave one of them out",
                field="bucket",
            )
        if name in request.buckets or (AUTO in request.buckets and not given):
            sizes = BATCH_SIZES if dimension.is_batch else OTHER_SIZES
            buckets[name] = request.buckets.get(name) or tuple((size, 1.0) for size in sizes)
        elif not given:
            raise RequestError(
                f"the dimension {name!r} of the model has no sizes; give one or more, as in "
                f"{name}=1",
                field="bucket",
            )
    return buckets

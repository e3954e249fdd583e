"""Loading of submitted models within limits, with errors that their owners understand."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tuner.context import Context
from tuner.devices.target_cache import DescribeTarget
from tuner.errors import ModelError, OutOfMemory, TunerError, WorkerLost, WorkError, was_killed
from tuner.files import disk_floor
from tuner.jobs.models.model_loading import LoadLimits
from tuner.jobs.preparation import Prepared, combine, prepare
from tuner.jobs.programs import programs_of, read_dimensions
from tuner.jobs.requests import ModelRequest
from tuner.networks.shapes import DynamicDimension
from tuner.workers.confinement.sandbox_paths import Access, model_access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProcessLimits:
    """Limits on the loading or compiling of a model.

    Attributes:
        max_bytes: Memory of the process that loads it.
        secs: Time-out of each step, without its pauses for measurements.
    """

    max_bytes: int
    secs: float = 600.0


def load_all(
    context: Context,
    models: Sequence[ModelRequest],
    limits: ProcessLimits,
    describe: DescribeTarget | None = None,
) -> Prepared:
    """Load the models of a job and split them into tasks, each in a process of its own.

    Args:
        context: Settings and database.
        limits: Limits on each of them.
        describe: Describes targets of devices on other machines; None for this machine's.

    Raises:
        RequestError: If a model cannot be used; the message names it.
        WorkError: If the loading of one failed.
    """
    members = []
    requests = (each for model in models for each in programs(context, model, limits)[1])
    for request in requests:
        with loaded_model(context, request, limits, describe=describe) as (_, prepared):
            members.append(prepared)
    return combine(context.sessions, members)


def programs(
    context: Context, model: ModelRequest, limits: ProcessLimits
) -> tuple[tuple[DynamicDimension, ...], tuple[ModelRequest, ...]]:
    """Return the dynamic dimensions of a model with buckets, and a request for each program.

    A model without buckets is its only program.

    Raises:
        RequestError: If the model cannot be used or has no such dimension; the message names it.
        WorkError: If its reading failed.
    """
    if not model.buckets:
        return (), (model,)
    access = model_access(model.reference, alone=True)
    with (
        _loader(context, access, limits) as worker,
        user_facing_errors(model, limits),
    ):
        load_limits = LoadLimits(limits.secs, alone=True)
        dimensions = read_dimensions(model.reference, worker, load_limits)
        return dimensions, programs_of(model, dimensions)


def again_if_killed(work: Callable[[], Result], begin_again: Callable[[], bool]) -> Result:
    """Do work, and once more if a worker process was killed over it.

    The kernel kills a worker when memory runs out, which others may have taken.

    Args:
        work: Loading or compiling of models.
        begin_again: Counts the second attempt before it begins; returns False if there is none,
            because the work was given up in between.
    """
    try:
        return work()
    except TunerError as error:
        if not was_killed(error) or not begin_again():
            raise
        _LOG.warning("a worker was killed, and the work is done once more: %s", error)
    return work()


@contextmanager
def loaded_model(
    context: Context,
    model: ModelRequest,
    limits: ProcessLimits,
    *,
    must_run: bool = True,
    describe: DescribeTarget | None = None,
) -> Iterator[tuple[Pool, Prepared]]:
    """Load a model, and yield the process that holds it for further work.

    Raises:
        RequestError: If the model cannot be used; the message names it.
        WorkError: If its loading failed.
    """
    access = model_access(model.reference, alone=True)
    with _loader(context, access, limits) as worker:
        with user_facing_errors(model, limits):
            prepared = prepare(
                model,
                context,
                worker,
                must_run=must_run,
                limits=LoadLimits(
                    limits.secs,
                    alone=True,
                    shortage=partial(disk_floor.shortage, context.settings),
                ),
                describe=describe,
            )
        yield worker, prepared


def _loader(context: Context, access: Access, limits: ProcessLimits) -> Pool:
    """Start the process of a model on its share of the cores."""
    settings = context.settings
    return fresh_worker(
        settings, access=access, max_bytes=limits.max_bytes, share=settings.load_share
    )


@contextmanager
def user_facing_errors(model: ModelRequest, limits: ProcessLimits) -> Iterator[None]:
    """Rewrite errors raised inside for the owner of a model: without paths, and with its limits.

    Raises:
        TunerError: The rewritten error.
    """
    gigabytes = f"{limits.max_bytes / 2**30:.3g} GiB"
    try:
        yield
    except OutOfMemory as error:
        raise ModelError(
            f"{model.name}: too large, it needs more than the {gigabytes} that a model may use",
            code="out-of-memory",
        ) from error
    except WorkerLost as error:
        if not error.killed:
            raise WorkError(f"{model.name}: {error} while it was loaded") from error
        raise ModelError(
            f"{model.name}: {error} while it was loaded; a model may use {gigabytes} of memory",
            code="out-of-memory",
        ) from error
    except ModelError as error:
        text = error.text.replace(model.reference, model.name)
        raise ModelError(text, code=error.code, field=error.field) from error
    except TunerError as error:
        raise type(error)(str(error).replace(model.reference, model.name)) from error
    except OSError as error:
        raise WorkError(f"{model.name}: {error.strerror or type(error).__name__}") from error

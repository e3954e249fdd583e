"""Models of strangers: loaded within limits, and what went wrong said in their words."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from tuner.context import Context
from tuner.devices.target_cache import DescribeTarget
from tuner.errors import ModelError, OutOfMemory, TunerError, WorkerLost, WorkError
from tuner.jobs.loaded_models import LoadLimits
from tuner.jobs.preparation import Prepared, combine, prepare
from tuner.jobs.requests import ModelRequest
from tuner.workers.pool import Pool
from tuner.workers.pools import fresh_worker


@dataclass(frozen=True)
class Limits:
    """What loading or compiling a model may take.

    Attributes:
        max_bytes: Memory of the process that does it.
        secs: Each step of it.
    """

    max_bytes: int
    secs: float = 600.0


def default_max_bytes() -> int:
    """Return half of this machine's memory."""
    return int(psutil.virtual_memory().total) // 2


def load_all(
    context: Context,
    models: Sequence[ModelRequest],
    limits: Limits,
    describe: DescribeTarget | None = None,
) -> Prepared:
    """Load the models of a job and split them into tasks, each in a process of its own.

    ``describe`` says what targets are on devices elsewhere.

    Raises:
        RequestError: If a model cannot be used; the message says which.
        WorkError: If loading one failed.
    """
    members = []
    for model in models:
        with loading(context, model, limits, describe=describe) as (_, prepared):
            members.append(prepared)
    return combine(context.sessions, members)


@contextmanager
def loading(
    context: Context,
    model: ModelRequest,
    limits: Limits,
    *,
    must_run: bool = True,
    describe: DescribeTarget | None = None,
) -> Iterator[tuple[Pool, Prepared]]:
    """Load a model, and keep its process for what comes next.

    Raises:
        RequestError: If the model cannot be used; the message says which.
        WorkError: If loading it failed.
    """
    with fresh_worker(context.settings, max_bytes=limits.max_bytes) as worker:
        with user_facing_errors(model, limits):
            prepared = prepare(
                model,
                context,
                worker,
                must_run=must_run,
                limits=LoadLimits(limits.secs, alone=True),
                describe=describe,
            )
        yield worker, prepared


@contextmanager
def user_facing_errors(model: ModelRequest, limits: Limits) -> Iterator[None]:
    """Say what went wrong without the paths of this machine, and with the limits that are.

    Raises:
        TunerError: As inside, in other words.
    """
    gigabytes = f"{limits.max_bytes / 2**30:.3g} GiB"
    try:
        yield
    except OutOfMemory as error:
        raise ModelError(
            f"{model.name}: too large, it needs more than the {gigabytes} a model may take"
        ) from error
    except WorkerLost as error:
        raise ModelError(
            f"{model.name}: {error} on the way; it may take {gigabytes} of memory"
        ) from error
    except TunerError as error:
        raise type(error)(str(error).replace(model.reference, model.name)) from error
    except OSError as error:
        raise WorkError(f"{model.name}: {error.strerror or type(error).__name__}") from error

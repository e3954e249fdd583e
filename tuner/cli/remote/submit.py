"""From a request of the command line to one of the service."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from tuner.cli.console import stderr_console
from tuner.client import Submitted, TuneFields, TunerClient
from tuner.client.client import ENDED
from tuner.client.transport import patiently
from tuner.client.uploads import Sent
from tuner.errors import WorkError
from tuner.jobs.preparation import ModelRequest
from tuner.jobs.requests import TuneRequest
from tuner.schemas import JobView

_POLL_SECS = 0.3
_PATIENCE_SECS = 300.0


def submit(client: TunerClient, models: Sequence[ModelRequest], request: TuneRequest) -> Submitted:
    """Send models and what is to be done with them; a bar shows a long upload."""
    references = [model.reference for model in models]
    with transfer("uploading") as sent:
        return client.tune(*references, sent=sent, **fields_of(models[0], request))


def split(client: TunerClient, model: ModelRequest) -> JobView:
    """Have a network split into tasks, unless it is already; return its table.

    Raises:
        WorkError: If it cannot be.
    """
    job = submit(client, [model], TuneRequest(model, trials=0)).job.id
    while True:
        view = patiently(partial(client.table, job), _PATIENCE_SECS)
        if view.split is not None and view.tasks:
            return view
        if view.job.state in ENDED:
            raise WorkError(f"job {job} is {view.job.state}: {view.job.message or 'no tasks'}")
        time.sleep(_POLL_SECS)


def fields_of(model: ModelRequest, request: TuneRequest) -> TuneFields:
    """Say what a request asks for as the service takes it."""
    goal = request.goal
    return TuneFields(
        target=model.target,
        inputs=model.inputs,
        random_weights=model.random_weights,
        trials=request.trials,
        seconds=request.seconds,
        trials_per_round=request.trials_per_round,
        objective=goal.objective,
        importance=goal.importance,
        require_ms=_in_ms(goal.required_secs),
        baseline_ms=_in_ms(goal.baseline_secs),
        patience=goal.patience,
        allocator=request.allocator,
        priority=request.priority,
        stop_below_ms=None if request.least_gain_secs is None else request.least_gain_secs * 1e3,
        cost_model=request.cost_model,
        seed=request.seed,
        build_timeout=request.build_timeout_secs,
        **_evaluator_fields(request.evaluator),
    )


@contextmanager
def transfer(what: str) -> Iterator[Sent]:
    """Show, in a terminal, how much of something was transferred."""
    console = stderr_console()
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(what, total=None, visible=False)

        def sent(n_bytes: int, n_all: int) -> None:
            progress.update(bar, completed=n_bytes, total=n_all or None, visible=n_all > 0)

        yield sent


def _in_ms(secs: Mapping[str, float]) -> dict[str, float]:
    return {name: value * 1e3 for name, value in secs.items()}


def _evaluator_fields(settings: Mapping[str, object]) -> TuneFields:
    fields = dict(settings)
    if "timeout_secs" in fields:
        fields["run_timeout"] = fields.pop("timeout_secs")
    return fields  # type: ignore[return-value]  # the service checks what they are

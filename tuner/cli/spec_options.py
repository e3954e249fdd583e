"""Command-line options of a tuning job, derived from the fields of TuneSpec."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, get_origin

import typer

from tuner.cli.options import MEASURING_PANEL, option_of
from tuner.jobs.spec import TuneSpec

Command = Callable[..., None]

# Groups of help pages, in their order, with the fields of each.
PANELS = {
    "Budget": ("trials", "seconds", "stop_below_ms"),
    "Scheduling": (
        "task",
        "objective",
        "importance",
        "require_ms",
        "baseline_ms",
        "patience",
        "allocator",
        "trials_per_round",
        "priority",
        "tag",
    ),
    "Search": ("cost_model", "seed"),
    MEASURING_PANEL: (
        "number",
        "repeat",
        "min_repeat_ms",
        "cache_flush",
        "cooldown_ms",
        "run_timeout",
        "build_timeout",
    ),
}
_METAVARS = {
    "seconds": "SECONDS",
    "stop_below_ms": "MS",
    "task": "NAME|HASH",
    "tag": "TAG",
    "importance": "[NAME=]FACTOR",
    "require_ms": "[NAME=]MS",
    "baseline_ms": "[NAME=]MS",
    "seed": "SEED",
    "min_repeat_ms": "MS",
    "cooldown_ms": "MS",
    "run_timeout": "SECONDS",
    "build_timeout": "SECONDS",
}


def with_spec_options(command: Command) -> Command:
    """Return a command with one option per field of :class:`TuneSpec` in place of its ``**fields``.

    Typer reads the signature; the command receives the fields by their names in the spec.
    """

    @wraps(command)
    def run(**arguments: Any) -> None:
        command(**arguments)

    own = list(inspect.signature(command).parameters.values())[:-1]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    run.__signature__ = inspect.Signature([*keywords, *_parameters()])  # type: ignore[attr-defined]
    return run


def _parameters() -> Iterator[inspect.Parameter]:
    for panel, names in PANELS.items():
        for name in names:
            field = TuneSpec.model_fields[name]
            is_list = get_origin(field.annotation) in (dict, tuple)
            kind = list[str] if is_list else field.annotation
            flag = option_of(name)
            yield inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=[] if is_list else field.default,
                annotation=Annotated[
                    kind,
                    typer.Option(
                        f"{flag}/--no-{flag.removeprefix('--')}"
                        if field.annotation is bool
                        else flag,
                        metavar=_METAVARS.get(name, "NAME" if field.annotation is str else "N"),
                        help=field.description,
                        rich_help_panel=panel,
                    ),
                ],
            )

"""Command-line options of a tuning job, derived from the fields of TuneSpec."""

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_origin

import typer
from pydantic.fields import FieldInfo

from tuner.cli.options import option_of
from tuner.jobs.spec import TuneSpec

Command = Callable[..., None]

# Panels of --help, each by its first option in the order of the spec.
_PANELS = {
    "trials": "Budget",
    "objective": "Objective",
    "allocator": "Search",
    "number": "Measurement",
}


def with_spec_options(command: Command) -> Command:
    """Replace the ``**fields`` of a command by one option per field of :class:`TuneSpec`.

    Typer reads the signature; the command receives the fields by their names in the spec.
    """
    own = list(inspect.signature(command).parameters.values())[:-1]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    command.__signature__ = inspect.Signature([*keywords, *_parameters()])  # type: ignore[attr-defined]
    return command


def _parameters() -> Iterator[inspect.Parameter]:
    panel = ""
    for name, field in TuneSpec.model_fields.items():
        panel = _PANELS.get(name, panel)
        is_mapping = get_origin(field.annotation) is dict
        kind = list[str] if is_mapping else field.annotation
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if is_mapping else field.default,
            annotation=Annotated[kind, _option(name, field, panel)],
        )


def _option(name: str, field: FieldInfo, panel: str) -> Any:
    flag = option_of(name)
    metavar = None
    if get_origin(field.annotation) is dict:
        metavar = "[NAME=]MS" if name.endswith("_ms") else "[NAME=]FACTOR"
    elif name == "stop_below_ms":
        # The option has no unit in its name.
        metavar = "MS"
    return typer.Option(
        f"{flag}/--no-{flag.removeprefix('--')}" if field.annotation is bool else flag,
        metavar=metavar,
        help=field.description,
        show_default=field.default not in (None, {}),
        rich_help_panel=panel,
    )

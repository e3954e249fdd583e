"""Help pages and the options of all commands.

Pages have option groups, readable metavars, one example a line, and the commands in order.
"""

import re
import textwrap
from typing import Annotated, Any

import typer

from tuner.cli import console
from tuner.cli.options import OUTPUT_PANEL, PLACEMENT_PANEL

# A command with fewer options lists them in one group.
_MIN_GROUPED = 11
_LAST_PANELS = (PLACEMENT_PANEL, OUTPUT_PANEL)
_EXAMPLES = re.compile(r"^(Examples?:)\n((?:    .*(?:\n|$))+)", re.MULTILINE)


def arrange(command: Any) -> None:
    """Arrange in place the help pages of a command that typer built and of its subcommands.

    All of them get -h, those that do the work -q and -v as well.
    """
    command.help = _EXAMPLES.sub(_as_block, command.help or "")
    command.context_settings = {"help_option_names": ["-h", "--help"]}
    if not hasattr(command, "commands"):
        command.params += _common_options()
    _arrange_parameters(command)
    for child in getattr(command, "commands", {}).values():
        arrange(child)


def _quiet(requested: bool) -> None:
    if requested:
        console.choose_detail("quiet")


def _verbose(requested: bool) -> None:
    if requested:
        console.choose_detail("verbose")


_COMMON = typer.Typer(add_completion=False)


@_COMMON.command()
def _common(
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Print no progress and no notes; errors remain.",
            callback=_quiet,
            expose_value=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Print the logs of the command on stderr.",
            callback=_verbose,
            expose_value=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
) -> None:
    """Hold the options that every command has."""
    del quiet, verbose


def _common_options() -> list[Any]:
    """Return new options for one command, whose help page groups them in its own way."""
    program: Any = typer.main.get_command(_COMMON)
    return [param for param in program.params if param.name in ("quiet", "verbose")]


def _as_block(examples: re.Match[str]) -> str:
    """Make a block of examples, in which Markdown keeps the line breaks."""
    return f"{examples[1]}\n\n```text\n{textwrap.dedent(examples[2]).strip()}\n```\n"


def _arrange_parameters(command: Any) -> None:
    help_option = command.get_help_option(
        command.context_class(command, **command.context_settings)
    )
    options = [option for option in command.params if option.param_type_name == "option"]
    is_grouped = len(options) >= _MIN_GROUPED
    command.params.sort(key=_panel_rank)
    help_option.rich_help_panel = command.params[-1].rich_help_panel if is_grouped else None
    for parameter in (*command.params, help_option):
        # An empty default says nothing.
        parameter.show_default = parameter.default not in (None, "", [], ())
        if parameter.param_type_name == "argument":
            # The metavar already names it; typer would add its Python type.
            parameter.display_type_rich = _no_type
        elif parameter.is_flag:
            parameter.metavar = ""
        if not is_grouped:
            parameter.rich_help_panel = None


def _panel_rank(parameter: Any) -> int:
    panel = parameter.rich_help_panel
    return _LAST_PANELS.index(panel) + 1 if panel in _LAST_PANELS else 0


def _no_type(ctx: object) -> None:
    del ctx

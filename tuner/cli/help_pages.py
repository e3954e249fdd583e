"""Help pages: option groups, readable metavars, one example per line, commands in order."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.cli.options import OUTPUT_PANEL, PLACEMENT_PANEL

# A command with fewer options lists them in one group.
_MIN_GROUPED = 9
_LAST_PANELS = (PLACEMENT_PANEL, OUTPUT_PANEL)
_EXAMPLES = re.compile(r"^(Examples?:)\n((?:    .*(?:\n|$))+)", re.MULTILINE)


def arrange(program: Any, order: Sequence[str]) -> None:
    """Arrange the help pages of a program and of all its commands in place.

    Args:
        program: Click group that typer built.
        order: Names of its commands in the order of its help page.
    """
    program.commands = {name: program.commands[name] for name in order}
    for command in _commands(program):
        command.help = _EXAMPLES.sub(_as_block, command.help or "")
        _arrange_parameters(command)


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from _commands(child)


def _as_block(examples: re.Match[str]) -> str:
    """Make a block of examples, in which Markdown keeps the line breaks."""
    return f"{examples[1]}\n\n```text\n{textwrap.dedent(examples[2]).strip()}\n```\n"


def _arrange_parameters(command: Any) -> None:
    help_option = command.get_help_option(command.context_class(command))
    options = [option for option in command.params if option.param_type_name == "option"]
    is_grouped = len(options) >= _MIN_GROUPED
    command.params.sort(key=_panel_rank)
    help_option.rich_help_panel = command.params[-1].rich_help_panel if is_grouped else None
    for parameter in (*command.params, help_option):
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

"""Tables of the options of commands, made from the parser of the command line."""

import re
from collections.abc import Iterator
from typing import Any

from tuner.cli.main import make_program

# The page describes these once, for all commands.
_EVERYWHERE = {"help", "quiet", "verbose", "install_completion", "show_completion"}
# Pages that say more about an option, by its name in Python.
_SEE = {
    "allocator": "scheduler.md#allocators",
    "buckets": "buckets.md",
    "engine": "engines.md",
    "masks": "buckets.md#padding",
    "objective": "scheduler.md#objectives",
    "quotas": "rest.md#limits",
    "rpc": "fleet.md#boards-and-remote-hosts-by-tvms-rpc",
    "sanitize": "cuda.md#checking-winners",
    "target": "#targets",
    "trusted_proxies": "proxies.md",
}
_SECTION = re.compile(r"^## `tuner ([^`]+)`\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def add_options(text: str) -> str:
    """Add to each section of ``docs/cli.md`` that describes a command the table of its options."""
    program = make_program()
    # The section of the options before a command is named after the first of them.
    commands = {**dict(_commands(program)), "--server": program}

    def complete(section: re.Match[str]) -> str:
        if section[1] not in commands:
            return section[0]
        return f"{section[0].rstrip()}\n\n{_table(section[1], commands)}\n\n"

    return _SECTION.sub(complete, text)


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{word} ")
        else:
            yield f"{prefix}{word}", command


def _table(name: str, commands: dict[str, Any]) -> str:
    rows = [
        f"| {_name(parameter)} | {_meaning(parameter, commands)} |"
        for parameter in commands[name].params
        if parameter.name not in _EVERYWHERE
    ]
    return "\n".join(["| option | meaning |", "| --- | --- |", *rows])


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    value = "" if parameter.is_flag else f" `{parameter.metavar}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts)) + value


def _meaning(parameter: Any, commands: dict[str, Any]) -> str:
    def link(quoted: re.Match[str]) -> str:
        anchor = quoted[1].replace(" ", "-")
        return f"[{quoted[0]}](#tuner-{anchor})" if quoted[1] in commands else quoted[0]

    text = re.sub(r"`tuner ([a-z ]+)`", link, parameter.help or "")
    # A URL or NAME=<...> in a help text is text.
    text = text.replace("<", "&lt;").replace("|", r"\|").replace("*", r"\*")
    is_flag = getattr(parameter, "is_flag", False)
    shown = getattr(parameter, "show_default", False) and not is_flag
    if shown and parameter.default not in (None, "", (), []):
        default = parameter.default
        names = ", ".join(default) if isinstance(default, list | tuple) else default
        text += f" Default `{names}`."
    if parameter.name in _SEE:
        text += f" [More]({_SEE[parameter.name]})."
    return f"{text} Required." if parameter.required else text

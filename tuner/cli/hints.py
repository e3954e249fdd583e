"""Commands that a report proposes, with the options of the command that printed it."""

import shlex
from collections.abc import Mapping, Sequence

from tuner.cli import connection


def command(name: str, *arguments: str, options: Mapping[str, object]) -> str:
    """Return a command that can be run as it is printed.

    Args:
        name: Name of the command, such as ``records verify``.
        arguments: Its arguments.
        options: Values by option; one without a value is left out, and a sequence repeats it.
    """
    server = connection.chosen()
    words = ["tuner", *(["--server", server.url] if server else []), *name.split(), *arguments]
    for option, value in options.items():
        is_several = isinstance(value, Sequence) and not isinstance(value, str)
        for each in value if is_several else [value]:  # type: ignore[attr-defined]
            if each is not None:
                words += [option, str(each)]
    return shlex.join(words)


def model_options(**values: object) -> dict[str, object]:
    """Return options by name that all commands on a model share; those of the default are None."""
    if values.get("target") == "llvm":
        values["target"] = None
    return {f"--{name.replace('_', '-')}": value for name, value in values.items()}

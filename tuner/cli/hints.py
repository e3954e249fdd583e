"""Commands that a report proposes, with the options of the command that printed it."""

import shlex
from collections.abc import Mapping, Sequence

from tuner.cli import connection

# Settings of the commands that are proposed.
_PLACES = ("database", "data_dir", "engine")


def command(
    name: str, *arguments: str, options: Mapping[str, object], is_local: bool = False
) -> str:
    """Return a command that can be run as it is printed.

    Args:
        name: Name of the command, such as ``records verify``.
        options: Values by option; one without a value is left out, and a sequence repeats it.
        is_local: True for a command that works on one machine alone, without a server.
    """
    server = None if is_local else connection.chosen()
    words = ["tuner", *(["--server", server.url] if server else []), *name.split(), *arguments]
    for option, value in options.items():
        is_several = isinstance(value, Sequence) and not isinstance(value, str)
        for each in value if is_several else [value]:  # type: ignore[attr-defined]
            if each is not None:
                words += [option, str(each)]
    return shlex.join(words)


def placed(command: str, overrides: Mapping[str, object]) -> str:
    """Return a command of the library with the settings of the command that prints it.

    Args:
        command: Command that can be run with the default settings; may be empty.
    """
    options = [(f"--{name.replace('_', '-')}", overrides.get(name)) for name in _PLACES]
    words = [word for option, value in options if value for word in (option, str(value))]
    return f"{command} {shlex.join(words)}" if command and words else command


def model_options(
    target: str,
    inputs: Sequence[str],
    buckets: Sequence[str],
    masks: Sequence[str],
    random_weights: int | None,
    overrides: Mapping[str, object],
) -> dict[str, object]:
    """Return options by name that all commands on a model share; those of the default are None."""
    return {
        "--target": None if target == "llvm" else target,
        "--input": inputs,
        "--bucket": buckets,
        "--mask": masks,
        "--random-weights": random_weights,
        **{f"--{name.replace('_', '-')}": overrides[name] for name in _PLACES},
    }

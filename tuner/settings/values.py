"""Strict reading of settings: what cannot be understood is an error, never a default."""

import difflib
import ipaddress
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

from tuner.errors import RequestError

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")
_PREFIX = "TUNER_"
#: Variables that are not settings of a command, without their prefix.
OTHER_VARIABLES = (
    # of the command line, and of processes that share a machine
    *("CONFIG", "SERVER", "TOKEN", "RUNTIME_DIR", "WORKER_ENVIRONMENT"),
    # of the API
    *("HOST", "PORT", "MAX_UPLOAD_MB", "RATE", "REQUIRE_TOKENS", "QUOTAS", "MAX_PRIORITY"),
    *("TRUSTED_PROXIES", "MAX_CONNECTIONS"),
    # of compose.yaml, which may reach a container
    *("DB_PASSWORD", "DB_API_PASSWORD", "DB_WORKER_PASSWORD"),
    *("PUBLISH", "TAG", "WORKER_CPUS", "WORKER_MEMORY_LIMIT", "BASE_IMAGE", "POSTGRES_IMAGE"),
)
# Variables of tests, and variables that Kubernetes sets for a service named tuner.
_FOREIGN = re.compile(r"TUNER_(TEST_.*|(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_.*))")
# Similarity to a setting, from 0 to 1, above which a name counts as a misspelling of it.
_MIN_SIMILARITY = 0.8
_LOG = logging.getLogger(__name__)


def read_flag(name: str, value: Any) -> bool:
    """Return a setting that is on or off.

    Raises:
        RequestError: If the value is neither.
    """
    text = str(value).strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise RequestError(
            f"{name} must be one of {', '.join(_TRUE)}, or {', '.join(filter(None, _FALSE))};"
            f" got {value!r}"
        )
    return text in _TRUE


def read_number(name: str, value: Any, minimum: float, maximum: float) -> float:
    """Return a number within limits.

    Raises:
        RequestError: If the value is none.
    """
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not minimum <= number <= maximum:
        raise RequestError(
            f"{name} must be a number from {minimum:g} to {maximum:g}, got {value!r}"
        )
    return number


def read_count(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return a whole number within limits.

    Raises:
        RequestError: If the value is none.
    """
    try:
        number = int(str(value))
    except ValueError:
        number = minimum - 1
    if number < minimum or (maximum is not None and number > maximum):
        limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise RequestError(f"{name} must be a whole number {limits}, got {value!r}")
    return number


def read_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return one of some words, in lower case.

    Raises:
        RequestError: If the value is none of them.
    """
    text = str(value).strip().lower()
    if text not in choices:
        raise RequestError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
    return text


def read_networks(name: str, value: Any) -> tuple[str, ...]:
    """Return addresses and networks, separated by commas, such as ``10.0.0.7,10.1.0.0/16``.

    Raises:
        RequestError: If one is neither.
    """
    parts = [part.strip() for part in str(value).split(",") if part.strip()]
    try:
        return tuple(str(ipaddress.ip_network(part)) for part in parts)
    except ValueError as error:
        raise RequestError(
            f"{name} takes addresses and networks such as 10.0.0.7,10.1.0.0/16: {error}"
        ) from error


def check_names(environ: Mapping[str, str], settings: Iterable[str]) -> None:
    """Check the names of ``TUNER_*`` variables; one that no setting resembles is a warning.

    Args:
        environ: Environment variables.
        settings: Settings of every command.

    Raises:
        RequestError: If a name looks like a misspelled setting, which would have no effect.
    """
    known = [name.upper() for name in (*settings, *OTHER_VARIABLES)]
    for variable in environ:
        name = variable.removeprefix(_PREFIX)
        if name == variable or name in known or _FOREIGN.fullmatch(variable):
            continue
        if similar := difflib.get_close_matches(name, known, 1, _MIN_SIMILARITY):
            raise RequestError(f"{variable} is not a setting; did you mean {_PREFIX}{similar[0]}?")
        _warn(variable)


@cache
def _warn(name: str) -> None:
    _LOG.warning("%s is not a setting of this program, and has no effect", name)

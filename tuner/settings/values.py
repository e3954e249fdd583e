"""Strict reading of settings: what cannot be understood is an error, never a default."""

import difflib
import ipaddress
import logging
import math
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
    *("TRUSTED_PROXIES", "MAX_CONNECTIONS", "WEBHOOK_SECRET", "WEBHOOK_URL", "WEBHOOK_PRIVATE"),
    # of compose.yaml, which may reach a container
    *("DB_PASSWORD", "DB_API_PASSWORD", "DB_WORKER_PASSWORD"),
    *("PUBLISH", "TAG", "WORKER_CPUS", "WORKER_MEMORY_LIMIT", "BASE_IMAGE", "POSTGRES_IMAGE"),
)
#: Endings of those with secrets; addresses of webhooks are secrets, too.
SECRET_VARIABLES = ("TOKEN", "PASSWORD", "_SECRET", "_URL")
# Variables of tests, and variables that Kubernetes sets for a service named tuner.
_FOREIGN = re.compile(r"TUNER_(TEST_.*|(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_.*))")
# Similarity to a setting, from 0 to 1, above which a name counts as a misspelling of it.
_MIN_SIMILARITY = 0.8
_LOG = logging.getLogger(__name__)

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SECS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def parse_size(name: str, text: str) -> int:
    """Read a size such as ``5GB`` or ``500 MiB``, in bytes.

    Raises:
        RequestError: If the text is not a size; the message begins with the name.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    n_bytes = float(match[1]) * _UNITS.get(match[2].upper(), math.inf) if match else math.inf
    if not math.isfinite(n_bytes):
        raise RequestError(f"{name} takes a size such as 500MB or 5GB, got {text!r}")
    return int(n_bytes)


def parse_age(name: str, text: str) -> float:
    """Read a span of time such as ``30d`` or ``12h``, in seconds.

    Raises:
        RequestError: If the text is not a span of time; the message begins with the name.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if match is None:
        raise RequestError(f"{name} takes a time such as 12h or 30d, got {text!r}")
    return float(match[1]) * _SECS[match[2]]


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
    _LOG.warning("%s is not a setting of this program: `tuner settings` lists them", name)

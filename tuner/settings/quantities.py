"""Sizes and spans of time as people write them, such as ``5GB`` and ``30d``."""

import math
import re

from tuner.errors import RequestError

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

"""How numbers and times are printed on pages; a dash stands for what is not known yet."""

import math
from datetime import datetime

from records.models import now
from scheduler import estimate

DASH = "–"  # noqa: RUF001  an en dash, as printed
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def milliseconds(secs: float | None, digits: int = 4) -> str:
    """Print seconds as milliseconds, without the unit."""
    if secs is None or not math.isfinite(secs):
        return DASH
    return f"{secs * 1e3:,.{digits}f}"


def short_milliseconds(secs: float | None) -> str:
    """Print seconds as milliseconds in four significant digits, without the unit."""
    if secs is None or not math.isfinite(secs):
        return DASH
    return f"{secs * 1e3:,.4g}"


def clock(secs: float | None) -> str:
    """Print a duration as h:mm:ss."""
    if secs is None or not math.isfinite(secs):
        return DASH
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def ago(at: datetime) -> str:
    """Print how long ago something was, in the largest unit that says enough."""
    secs = max((now() - at).total_seconds(), 0.0)
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if secs >= size:
            return f"{secs / size:.0f} {unit} ago"
    return f"{secs:.0f} s ago"


def stamp(at: datetime) -> str:
    """Print a time in UTC to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def count(number: float | None) -> str:
    """Print a whole number with its thousands apart."""
    return DASH if number is None else f"{number:,.0f}"


def percent(share: float | None) -> str:
    """Print a share from 0 to 1 in percent, with the sign."""
    return DASH if share is None else f"{share:.1%}"


def size(n_bytes: int | None) -> str:
    """Print a number of bytes in the unit that keeps it short."""
    if n_bytes is None:
        return DASH
    power = min(int(math.log(n_bytes, 1024)) if n_bytes > 0 else 0, len(_UNITS) - 1)
    return f"{n_bytes / 1024**power:.{1 if power else 0}f} {_UNITS[power]}"


def gflops(flop: float, secs: float | None) -> str:
    """Print billions of operations a second, without the unit."""
    value = estimate.gflops(flop, secs)
    return f"{value:.1f}" if value else DASH


def ratio(part: float, whole: float | None) -> float | None:
    """Return a share from 0 to 1, or None where there is no whole."""
    if whole is None:
        return None
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 1.0


FILTERS = {
    "ms": milliseconds,
    "short_ms": short_milliseconds,
    "clock": clock,
    "ago": ago,
    "stamp": stamp,
    "count": count,
    "gflops": gflops,
    "percent": percent,
    "size": size,
}

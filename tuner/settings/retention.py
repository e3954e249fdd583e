"""Settings of a service that bound what it keeps: ages, sizes, and the disk space left free."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tuner.errors import RequestError
from tuner.settings.values import parse_age, parse_size

_NEVER = "never"
_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    """Ages in seconds and sizes in bytes; None keeps without a limit.

    Attributes:
        min_free_disk: Free space below which nothing new begins; None for 1 GiB, or a twentieth
            of a smaller disk.
        keep_deleted: Age of a deletion from which the files of the job are removed.
        keep_deleted_rows: Age of a deletion from which the rows of the job are removed.
        keep_temporary: Age of temporary files, and of files that nothing names.
        keep_events: Age of events.
        keep_features: Age of cost model features.
        keep_audit: Age of entries of the audit log.
        cache_max_size: Size of the build cache.
        cache_max_age: Time without a use after which an entry of the build cache is removed.
        log_max_size: Size of a log of worker processes from which it is rotated.
    """

    min_free_disk: int | None = None
    keep_deleted: float = _HOUR
    keep_deleted_rows: float | None = 30 * _DAY
    keep_temporary: float = _DAY
    keep_events: float | None = 90 * _DAY
    keep_features: float | None = 365 * _DAY
    keep_audit: float | None = 365 * _DAY
    cache_max_size: int | None = 20 * 10**9
    cache_max_age: float | None = 90 * _DAY
    log_max_size: int = 10 * 2**20


DEFAULTS = RetentionSettings()
KEYS = tuple(field.name for field in fields(RetentionSettings))
_SIZES = ("min_free_disk", "cache_max_size", "log_max_size")
_ALWAYS = ("min_free_disk", "keep_deleted", "keep_temporary", "log_max_size")


def parse(values: Mapping[str, Any]) -> RetentionSettings:
    """Read the settings among others; a missing or empty one has its default.

    Raises:
        RequestError: If one is malformed.
    """
    given = {name: str(values[name]).strip() for name in KEYS if str(values.get(name, "")).strip()}
    settings = replace(DEFAULTS, **{name: _parse(name, text) for name, text in given.items()})
    if settings.keep_deleted_rows is not None and (
        settings.keep_deleted > settings.keep_deleted_rows
    ):
        raise RequestError(
            "keep_deleted must not exceed keep_deleted_rows: without its rows, the files of a "
            "deleted job are not found"
        )
    return settings


def _parse(name: str, text: str) -> Any:
    if text.lower() == _NEVER:
        if name in _ALWAYS:
            raise RequestError(f"{name} needs a limit, got {text!r}")
        return None
    return parse_size(name, text) if name in _SIZES else parse_age(name, text)

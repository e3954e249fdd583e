"""The cache that the settings name."""

import logging
import time

from tuner.build_cache.cache import Cache
from tuner.settings import Settings

_LOG = logging.getLogger(__name__)
_QUIET_SECS = 60.0

_told: dict[str, float] = {}


def open_cache(settings: Settings) -> Cache:
    """Open the cache of a process; nothing is read or written yet."""
    return Cache(settings.cache_dir, settings.cache_remote, warn=_warn)


def open_local(settings: Settings) -> Cache:
    """Open what is of use to this machine alone, for it names its files or its processor."""
    return Cache(settings.cache_dir, warn=_warn)


def _warn(text: str) -> None:
    """Log a warning, unless another part of the same work did so a moment ago."""
    now = time.monotonic()
    for known in [each for each, then in list(_told.items()) if now - then > _QUIET_SECS]:
        _told.pop(known, None)
    if _told.setdefault(text, now) == now:
        _LOG.warning("%s", text)

"""The caches that the settings name."""

import logging
import time

from tuner.build_cache.cache import Cache
from tuner.library.signatures import NO_POLICY, policy_of
from tuner.settings import Settings

_LOG = logging.getLogger(__name__)
_REPEAT_INTERVAL_SECS = 60.0

_logged_at: dict[str, float] = {}


def open_cache(settings: Settings) -> Cache:
    """Open the cache with both tiers; nothing is read or written yet.

    Raises:
        RequestError: If the remote tier or the keys of its signatures cannot be used.
    """
    signatures = policy_of(settings) if settings.cache_remote else NO_POLICY
    return Cache(settings.cache_dir, settings.cache_remote, signatures, warn=_warn)


def open_local(settings: Settings) -> Cache:
    """Open the local tier alone, for entries that name files or the processor of this machine."""
    return Cache(settings.cache_dir, warn=_warn)


def _warn(text: str) -> None:
    """Log a warning, unless another cache of this process did so a moment ago."""
    now = time.monotonic()
    for logged, at in list(_logged_at.items()):
        if now - at > _REPEAT_INTERVAL_SECS:
            _logged_at.pop(logged, None)
    if _logged_at.setdefault(text, now) == now:
        _LOG.warning("%s", text)

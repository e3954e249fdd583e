"""The cache that the settings name."""

from tuner.config import Settings
from tuner.library.cache import Cache


def open_cache(settings: Settings) -> Cache:
    """Open the cache of a process; nothing is read or written yet."""
    return Cache(settings.cache_dir, settings.cache_remote)


def open_local(settings: Settings) -> Cache:
    """Open what is of use to this machine alone, for it names its files or its processor."""
    return Cache(settings.cache_dir)

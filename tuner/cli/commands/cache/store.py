"""Options and the opening of the build cache, shared by the commands of ``tuner cache``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tuner.cli.console import print_note
from tuner.cli.options import option

if TYPE_CHECKING:
    from tuner.build_cache.local import LocalTier
    from tuner.settings import Settings

CacheDirOption = Annotated[
    Path | None,
    option(
        "DIR",
        "Directory of the build cache [default: cache in the data directory]. Also "
        "TUNER_CACHE_DIR.",
    ),
]
KindOption = Annotated[
    str | None, option("KIND", "Use entries of this kind only, such as subgraph or library.")
]


def read_settings(cache_dir: Path | None, data_dir: Path | None) -> "Settings":
    """Read the settings; the options of the command win."""
    from tuner import settings

    return settings.read_settings({"data_dir": data_dir, "cache_dir": cache_dir})


def open_local(cache_dir: Path | None, data_dir: Path | None) -> "LocalTier":
    """Open the cache that options and settings name; see :func:`tier_of`."""
    return tier_of(read_settings(cache_dir, data_dir))


def tier_of(settings: "Settings") -> "LocalTier":
    """Open the cache that settings name; it may not exist yet.

    Raises:
        RequestError: If its path is not a directory, or cannot be read.
    """
    from tuner.build_cache.local import LocalTier
    from tuner.errors import RequestError

    local = LocalTier(settings.cache_dir, print_note)
    for folder in (local.root, local.entries):
        try:
            next(folder.iterdir(), None)
        except FileNotFoundError:
            break
        except OSError as error:
            raise RequestError(f"cannot read the cache {folder}: {error.strerror}") from error
    return local


def check_kind(kind: str | None) -> str | None:
    """Return the kind if it is well-formed.

    Raises:
        RequestError: If it is malformed.
    """
    from tuner.build_cache.keys import is_kind
    from tuner.errors import RequestError

    if kind is not None and not is_kind(kind):
        raise RequestError(f"--kind must be a word in lower-case letters, got {kind!r}")
    return kind

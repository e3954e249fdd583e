"""What the commands of ``tuner cache`` share: their options, the store they mean, progress."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.console import print_line, print_note

if TYPE_CHECKING:
    from tuner.build_cache.local import LocalTier
    from tuner.settings import Settings

_REPORT_SECS = 1.0

CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        help="Where compiled code is kept [default: cache in the data directory]. "
        "Also TUNER_CACHE_DIR.",
        show_default=False,
    ),
]
KindOption = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Only entries of this kind.", show_default=False),
]


class Counter:
    """Tells stderr, now and then, how far long work is."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._next = time.monotonic() + _REPORT_SECS

    def __call__(self, n_entries: int) -> None:
        """Say how many entries are through."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_SECS
            print_line(f"{self._done} {n_entries} entries so far", to_stderr=True)


def read_settings(cache_dir: Path | None, data_dir: Path | None) -> "Settings":
    """Return the settings, with what options say."""
    from tuner import settings as tuner_settings

    return tuner_settings.read_settings({"data_dir": data_dir, "cache_dir": cache_dir})


def open_local(cache_dir: Path | None, data_dir: Path | None) -> "LocalTier":
    """Open the store that options and settings name; see :func:`tier_of`."""
    return tier_of(read_settings(cache_dir, data_dir))


def tier_of(settings: "Settings") -> "LocalTier":
    """Open the store that settings name; it need not exist.

    Raises:
        RequestError: If it is something else, or cannot be looked into.
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


def checked_kind(kind: str | None) -> str | None:
    """Return a kind that can be one, or None.

    Raises:
        RequestError: If it cannot.
    """
    from tuner.build_cache.keys import is_kind
    from tuner.errors import RequestError

    if kind is not None and not is_kind(kind):
        raise RequestError(f"--kind takes a word in lower-case letters, got {kind!r}")
    return kind

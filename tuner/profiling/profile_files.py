"""A profile as files: a page and a trace."""

import json
from pathlib import Path

from tuner.errors import RequestError
from tuner.profiling.page import as_page
from tuner.profiling.results import LibraryProfile
from tuner.profiling.traces import as_trace


def write(profile: LibraryProfile, html: Path | None, trace: Path | None) -> None:
    """Write the files that have a path.

    Raises:
        RequestError: If a file cannot be written.
    """
    if html is not None:
        write_text(html, as_page(profile), "html")
    if trace is not None:
        write_text(trace, json.dumps(as_trace(profile)), "trace")


def write_text(path: Path, text: str, field: str) -> None:
    """Write a file that a user named.

    Raises:
        RequestError: If it cannot be written.
    """
    try:
        path.write_text(text)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}", field=field) from error

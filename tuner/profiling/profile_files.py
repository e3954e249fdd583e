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
        _write(html, as_page(profile), "html")
    if trace is not None:
        _write(trace, json.dumps(as_trace(profile)), "trace")


def _write(path: Path, text: str, field: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}", field=field) from error

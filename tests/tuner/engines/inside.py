"""Functions for workers of another environment."""

import importlib.util
import sys


def look(package: str) -> tuple[str, bool]:
    """Return the prefix of this Python, and whether it can import a package."""
    return sys.prefix, importlib.util.find_spec(package) is not None

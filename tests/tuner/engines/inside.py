"""Called in workers of another environment."""

import importlib.util
import sys


def look(package: str) -> tuple[str, bool]:
    """Return where this Python has its packages, and whether a package is among them."""
    return sys.prefix, importlib.util.find_spec(package) is not None

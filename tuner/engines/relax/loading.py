"""Load libraries into the process that calls them."""

from pathlib import Path

from tuner.engines.relax.network import Library


def load(folder: Path) -> Library:
    """Load a library; see :func:`tuner.library.loading.load`."""
    return Library(folder)

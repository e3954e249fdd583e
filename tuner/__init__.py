"""Tuned, verified and compiled libraries for neural networks.

The functions of the Python API are defined in :mod:`tuner.api`.
"""

import sys
from typing import TYPE_CHECKING, Any

# For ``python -m tuner``, Python adds the current folder, whose files are not the tuner's modules.
if sys.argv[:1] == ["-m"] and "tuner" in sys.orig_argv and not sys.flags.safe_path:
    sys.path[:1] = [folder for folder in sys.path[:1] if __file__.startswith(f"{folder}/tuner/")]

# The first import of the package tuner.jit binds its name here; the function below replaces it.
import tuner.jit as _jit_package  # noqa: F401
from tuner.api import (
    best_records,
    build,
    evaluate,
    extract,
    jit,
    job,
    list_records,
    load,
    profile,
    tune,
)

if TYPE_CHECKING:
    from tuner import plot

    __version__: str

__all__ = [
    "__version__",
    "best_records",
    "build",
    "evaluate",
    "extract",
    "jit",
    "job",
    "list_records",
    "load",
    "plot",
    "profile",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Return what is loaded when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("subgraph-tuner")
    if name == "plot":
        from importlib import import_module

        return import_module("tuner.plot")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

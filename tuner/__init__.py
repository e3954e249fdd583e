"""Tuned, verified and compiled libraries for neural networks.

The functions of the Python API are defined in :mod:`tuner.api`.
"""

import sys

# For ``python -m tuner``, Python adds the current folder, whose files are not the tuner's modules.
if sys.argv[:1] == ["-m"] and "tuner" in sys.orig_argv and not sys.flags.safe_path:
    sys.path[:1] = [folder for folder in sys.path[:1] if __file__.startswith(f"{folder}/tuner/")]

# The first import of the package tuner.jit binds its name here; the function below replaces it.
import tuner.jit as _jit_package  # noqa: F401
from tuner.api import build, evaluate, extract, jit, load, tune

__all__ = ["build", "evaluate", "extract", "jit", "load", "tune"]

"""Tuned, verified and compiled libraries for neural networks.

The functions of the Python API are defined in :mod:`tuner.api`.
"""

# The first import of the package tuner.jit binds its name here; the function below replaces it.
import tuner.jit as _jit_package  # noqa: F401
from tuner.api import build, evaluate, extract, jit, load, tune

__all__ = ["build", "evaluate", "extract", "jit", "load", "tune"]

"""Run libraries of Subgraph Tuner with NumPy alone."""

from deploy.python.tuner_runtime.core import load
from tuner.errors import RequestError, TargetError, TunerError, WorkError

__all__ = ["RequestError", "TargetError", "TunerError", "WorkError", "load"]

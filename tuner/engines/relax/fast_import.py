"""Fast import of TVM, shared by every module of this engine.

TVM's ``s_tir.tensor_intrin`` package imports the intrinsics of every backend,
up to 20 s of parsing CUDA and ROCm templates, and the tuning context imports
that package. A bare package of the same name with the same ``__path__``, installed
first, lets each target import only its own.
"""

import importlib
import inspect
import logging
import sys
import traceback
import types
from pathlib import Path
from unittest import mock

import tvm
import tvm.s_tir

PACKAGE = "tvm.s_tir.tensor_intrin"
_INTRINSICS = {"x86_64": "x86", "aarch64": "arm_cpu"}


def _install_bare_package() -> None:
    if PACKAGE in sys.modules:
        return
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[PACKAGE] = package
    tvm.s_tir.tensor_intrin = package


def load_intrinsics(machine: str) -> None:
    """Import the tensor intrinsics that schedules for a target kind may name."""
    module = _INTRINSICS.get(machine)
    with mock.patch.object(inspect, "stack", _stack):
        if module:
            importlib.import_module(f"{PACKAGE}.{module}")
        if module == "x86":
            importlib.import_module("tuner.engines.relax.dot_intrinsic").register()


def _stack(_context: int = 1) -> list[inspect.FrameInfo]:
    """Return the callers of TVM's decorator, which reads no source of theirs outside of classes.

    For each function that it parses, ``inspect.stack`` reads the files of all callers: 0.5 s of
    the start of every worker.
    """
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return [
        inspect.FrameInfo(
            frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None, None
        )
        for frame in frames
    ]


_install_bare_package()
logging.getLogger("tvm").setLevel(logging.ERROR)

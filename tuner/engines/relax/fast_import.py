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
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import tvm
import tvm.s_tir
from tvm.tirx.script.parser import entry

PACKAGE = "tvm.s_tir.tensor_intrin"
_INTRINSICS = {"x86_64": "x86", "aarch64": "arm_cpu"}


def load_intrinsics(machine: str) -> None:
    """Import TVM's tensor intrinsics that schedules for a kind of CPU may name."""
    module = _INTRINSICS.get(machine)
    if module:
        with without_stack():
            importlib.import_module(f"{PACKAGE}.{module}")


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of a module or a class another value inside of the block."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def without_stack() -> AbstractContextManager[None]:
    """Let TVM's parser of functions see no callers inside of the block.

    Only methods and textual annotations need them, and for each function that it parses, it would
    read the files of all: 0.5 s of the start of every worker.
    """
    module = types.ModuleType("inspect")
    vars(module).update(vars(inspect) | {"stack": list})
    return attribute(entry, "inspect", module)


if PACKAGE not in sys.modules:
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[PACKAGE] = tvm.s_tir.tensor_intrin = package
logging.getLogger("tvm").setLevel(logging.ERROR)

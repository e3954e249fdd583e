"""Selection of the device of this machine that runs a library."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.base import _LOADED_LIBS
from tvm_ffi.libinfo import load_lib_ctypes

from tuner.errors import TargetError


def find_device(spec: str) -> Any:
    """Return the device for code of a target.

    Args:
        spec: Canonical JSON of the target.

    Raises:
        TargetError: If this machine has no such device, or the code does not run on it.
    """
    # TVM loads these parts of its runtime only where its compiler is installed.
    folder = Path(_LOADED_LIBS["tvm_runtime"]._name).parent
    for part in ("tvm_runtime_cuda", "tvm_runtime_extra"):
        if part not in _LOADED_LIBS:
            with suppress(OSError, RuntimeError):  # not installed, or without a driver
                _LOADED_LIBS[part] = load_lib_ctypes("tvm", part, "RTLD_LOCAL", [folder])
    target = json.loads(spec)
    if target["kind"] != "cuda":
        return tvm.cpu()
    arch = target["arch"]
    device = tvm.cuda()
    if not device.exist:
        raise TargetError(f"the library is for CUDA ({arch}), and this machine has no CUDA device")
    if not runs_on(arch, str(device.compute_version)):
        raise TargetError(
            f"the library is for CUDA {arch}, and the device of this machine has compute "
            f"capability {device.compute_version}; build it for this device"
        )
    return device


def is_broken() -> bool:
    """Return True if the GPU context of this process is broken, as after an illegal address.

    Such errors are sticky: they end the CUDA context (CUDA Runtime API, "Error Handling").
    """
    try:
        device = tvm.cuda()
        device.sync()
        tvm.runtime.tensor(np.ones(1, "int8"), device).numpy()
    except Exception:  # TVM wraps CUDA's errors in several types
        return True
    return False


def runs_on(arch: str, capability: str) -> bool:
    """Return True if binary code runs on a GPU: same major version, minor version not smaller.

    Code for ``sm_90a`` and other suffixed architectures runs on that capability alone.
    See CUDA C++ Programming Guide, "Binary Compatibility".
    """
    named = re.fullmatch(r"sm_(\d+)(\d)([a-z]?)", arch)
    has = re.match(r"(\d+)\.(\d+)", capability)
    if named is None or has is None:
        return False
    major, minor = int(has[1]), int(has[2])
    if named[3] == "a":
        return (major, minor) == (int(named[1]), int(named[2]))
    return major == int(named[1]) and minor >= int(named[2])

"""The device of this machine that runs a library."""

import json
import re
from typing import Any

import numpy as np
import tvm

from tuner.errors import TargetError


def find_device(spec: str) -> Any:
    """Return the device for code of a target.

    Args:
        spec: Canonical JSON of the target.

    Raises:
        TargetError: If this machine has none, or one that such code does not run on.
    """
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
    """Whether the GPU of this process fails at the simplest task, as after an illegal address.

    Such errors are sticky: they end the CUDA context (CUDA Runtime API, "Error Handling").
    """
    try:
        device = tvm.cuda()
        device.sync()
        tvm.runtime.tensor(np.ones(1, "int8"), device).numpy()
    except Exception:  # whatever TVM makes of CUDA's errors
        return True
    return False


def runs_on(arch: str, capability: str) -> bool:
    """Whether binary code runs on a GPU: one of the same major version, and no smaller minor one.

    Code for ``sm_90a`` and its like runs on that very capability alone.
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

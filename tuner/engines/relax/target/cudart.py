"""Loading of the CUDA runtime from Python packages, before TVM looks for it.

TVM's library for GPUs names ``libcudart.so.13`` and looks beside itself and where the system has
libraries; the extra ``cuda`` installs it elsewhere. A library that the process has loaded under
that name is used. Without a driver nothing is loaded.
"""

import ctypes
from importlib import util
from pathlib import Path

_DRIVER = "libcuda.so.1"
_RUNTIME = "libcudart.so.13"


def preload() -> str:
    """Load the runtime if there is a driver; return its path, or an empty string."""
    if not _loads(_DRIVER):
        return ""
    return next((name for name in (_RUNTIME, *_packaged()) if _loads(name)), "")


def _packaged() -> list[str]:
    spec = util.find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return [str(Path(folder) / "cu13" / "lib" / _RUNTIME) for folder in folders]


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True

"""The environment of worker processes: the variables that they need, and no others.

Workers parse models and run kernels of clients. A memory error in one of them must not read the
address or the password of the database, or the keys of other services.
"""

import os
import re
from collections.abc import Iterable, Mapping

#: Variable with the number of cores of the coordinator, in processes that have fewer.
MACHINE_CORES = "SUBGRAPH_TUNER_CORES"
#: Variable with the names of more variables that workers get, separated by commas.
MORE_VARIABLES = "TUNER_WORKER_ENVIRONMENT"

# Variables with folders, in which an empty or a relative one stands for the current folder.
_SEARCH_PATHS = (
    "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH", "COMPILER_PATH", "TVM_LIBRARY_PATH",
)  # fmt: skip
# Variables of the system, Python, compilers, drivers and libraries; those with `*` by their prefix.
_PERMITTED = (
    *_SEARCH_PATHS,
    *("HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_*"),
    *("LD_PRELOAD", "LD_BIND_NOW", "GLIBC_TUNABLES", "MALLOC_*", "PYTHON*"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "CC", "CXX", "SOURCE_DATE_EPOCH"),
    *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE"),
    *("CUDA_*", "CUBLAS_*", "CUDNN_*", "TVM_*", "TORCH_*", "PYTORCH_*", "TRITON_*"),
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "ONEDNN_*", "DNNL_*", "OPENBLAS_*", "NPY_*"),
    *("ORT_*", "OV_*", "OPENVINO_*", "ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS"),
    MACHINE_CORES,
)
# Secrets that the name of a library begins with, and a URL with a password in any variable.
_SECRET_NAME = re.compile(r"KEY|PASS|SECRET|TOKEN|CREDENTIAL|COOKIE|AUTH|JWT", re.IGNORECASE)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that workers get.

    They are those that compilers, drivers and libraries read, and those that
    ``TUNER_WORKER_ENVIRONMENT`` names, in which ``*`` at the end stands for any characters.
    """
    named = [name.strip() for name in environ.get(MORE_VARIABLES, "").split(",")]
    kept = {
        name: value
        for name, value in environ.items()
        if _matches(name, named)
        or (
            _matches(name, _PERMITTED)
            and not _SECRET_NAME.search(name)
            and not _URL_WITH_PASSWORD.search(value)
        )
    }
    return without_current_folder(kept)


def without_current_folder(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose search paths do not lead to the current folder.

    Python, compilers and the dynamic linker take an empty folder for it. Processes that these
    programs start in turn do not import from it, either.
    """
    kept = {**environ, "PYTHONSAFEPATH": "1"}
    for name in _SEARCH_PATHS:
        folders = [text for text in kept.pop(name, "").split(os.pathsep) if text[:1] == os.sep]
        if folders:
            kept[name] = os.pathsep.join(folders)
    return kept


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
    )

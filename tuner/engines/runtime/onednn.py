"""oneDNN, whose products and convolutions a kernel may call; see docs/decisions/0049.

A target asks for it by ``"libs": ["onednn"]``. The calls are in ``onednn.c``, which is linked to
the kernels; programs in C that load them find ``libdnnl.so.3`` as they find any library.
"""

import ctypes
import hashlib
import platform
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tuner.engines.linker import compile_c, find_compiler, link_shared
from tuner.errors import RequestError, WorkError, install_command

#: Name among the libraries of a target.
NAME = "onednn"
_SOURCE = Path(__file__).with_suffix(".c")
_OBJECT = "onednn.o"
# The package of a build for CPUs alone, and the file that libraries name.
_PACKAGE, _FILE = "onednn-cpu-gomp", "libdnnl.so.3"
_MAJOR = 3
# Values of cpu_runtime: one thread, and OpenMP. The threads of others cannot be held back.
_RUNTIMES = (1, 2)


def is_call(variant: str) -> bool:
    """Return whether a variant calls oneDNN."""
    return variant.startswith(f"{NAME}-")


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


@lru_cache(maxsize=1)
def load() -> str:
    """Load oneDNN into this process, where kernels find it, and return its version.

    Raises:
        RequestError: If it is not installed, or is a build that kernels cannot call.
    """
    try:
        loaded = ctypes.CDLL(str(_path()))
    except OSError as error:
        raise RequestError(f"oneDNN is not installed ({error}): {install_command(NAME)}") from error
    loaded.dnnl_version.restype = ctypes.POINTER(_Version)
    version = loaded.dnnl_version().contents
    text = f"{version.major}.{version.minor}.{version.patch}"
    if version.major != _MAJOR or version.cpu_runtime not in _RUNTIMES:
        raise RequestError(
            f"this oneDNN ({text}) has threads of its own, or is not version {_MAJOR}; for one "
            f"that kernels can call: {install_command(NAME)}"
        )
    return text


def check(version: str) -> None:
    """Load oneDNN for a library that was built with a version of it.

    Another version may be slow or refuse with the layout in which the weights were packed.

    Raises:
        RequestError: If it is not installed, or of another version.
    """
    installed = load()
    if installed != version:
        raise RequestError(
            f"the library was built with oneDNN {version}, and {installed} is installed: build "
            "it again here, or install that version"
        )


def problem() -> str:
    """Return why kernels cannot call oneDNN here; empty if they can."""
    try:
        load()
        find_compiler()
    except (RequestError, WorkError) as error:
        return str(error)
    return ""


def file_facts() -> list[Any] | None:
    """Return path, size and time of change of the installed oneDNN; None without one."""
    path = _path()
    try:
        facts = path.stat()
    except OSError:
        return None
    return [str(path), facts.st_size, facts.st_mtime_ns]


@lru_cache(maxsize=1)
def version_of_calls() -> str:
    """Return the version of the calls, which is part of the keys of what contains them."""
    return hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]


def _path() -> Path:
    """Return the file of the package, or of conda's."""
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    located = (Path(str(file.locate())) for file in files if file.name == _FILE)
    return next(located, Path(sys.prefix) / "lib" / _FILE)


def compile_calls(folder: Path) -> Path:
    """Compile the calls of kernels to an object file in a folder, and return it.

    Raises:
        WorkError: If no C compiler is installed, or it fails.
    """
    calls = folder / _OBJECT
    compile_c(_SOURCE.read_text(), platform.machine(), calls)
    return calls


def library() -> Path:
    """Return the file of oneDNN, which is linked with the calls.

    Raises:
        RequestError: If it is not installed.
    """
    load()
    return _path()


def panel(*shape: int) -> int:
    """Return the panel for the weights of a convolution on this CPU.

    Args:
        *shape: The arguments of ``tuner_onednn_panel``.

    Returns:
        Number of output channels that lie side by side; 0 if oneDNN has a kernel for none.

    Raises:
        RequestError: If oneDNN is not installed.
        WorkError: If no C compiler is installed.
    """
    return int(_calls().tuner_onednn_panel(*map(ctypes.c_int32, shape)))


def product_panel(n_rows: int, n_terms: int, n_columns: int) -> int:
    """Return the panel for the weights of a product on this CPU; see :func:`panel`."""
    sizes = map(ctypes.c_int32, (n_rows, n_terms, n_columns))
    return int(_calls().tuner_onednn_product_panel(*sizes))


@lru_cache(maxsize=1)
def _calls() -> ctypes.CDLL:
    with TemporaryDirectory() as folder:
        linked = Path(folder) / "onednn.so"
        link_shared([compile_calls(Path(folder)), library()], linked)
        calls = ctypes.CDLL(str(linked))
    for function in (calls.tuner_onednn_panel, calls.tuner_onednn_product_panel):
        function.restype = ctypes.c_int32
    return calls

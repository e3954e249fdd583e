"""Networks in, tuned and verified libraries out."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

if TYPE_CHECKING:
    from tuner.api import build, evaluate, extract, tune
    from tuner.jit.jit import Jitted
    from tuner.jit.onnx_function import OnnxFunction
    from tuner.jit.options import JitFields
    from tuner.jit.torch_function import TorchFunction
    from tuner.library.loading import Library

__all__ = ["build", "evaluate", "extract", "jit", "load", "tune"]


def __getattr__(name: str) -> Any:
    """Import what a notebook calls when it is called for: it takes a second."""
    if name in ("build", "evaluate", "extract", "tune"):
        from tuner import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(path: str | Path) -> "Library":
    """Load a built library as a callable on numpy arrays.

    This imports TVM's runtime into the calling process, or starts a process for it where the
    library is of an engine with an environment of its own. Calls of what is returned are to come
    one at a time; threads that run a network side by side load it once each.

    >>> import tuner
    >>> network = tuner.load("squeezenet.lib")  # doctest: +SKIP
    >>> outputs = network(data_0=image)  # doctest: +SKIP

    Args:
        path: Folder that ``tuner build`` wrote.

    Returns:
        A callable: arrays by input name in, arrays by output name out.

    Raises:
        RequestError: If there is no library, it is damaged, or of a newer version.
    """
    from tuner.library import loading

    return loading.load(Path(path))


@overload
def jit(function: str | Path, **options: "Unpack[JitFields]") -> "OnnxFunction": ...


@overload
def jit(function: Callable[..., Any], **options: "Unpack[JitFields]") -> "TorchFunction": ...


@overload
def jit(
    function: None = None, **options: "Unpack[JitFields]"
) -> "Callable[[Callable[..., Any]], TorchFunction]": ...


def jit(
    function: Callable[..., Any] | str | Path | None = None, **options: "Unpack[JitFields]"
) -> "Jitted | Callable[[Callable[..., Any]], Jitted]":
    """Compile a function when it is called, once for each signature of its arguments.

    A library is compiled from the best records known, in processes of its own, and kept in the
    build cache; the next process that calls the function finds it there. Works as a decorator,
    with options or without.

    >>> import tuner
    >>> network = tuner.jit(module.eval())  # doctest: +SKIP
    >>> outputs = network(images)  # doctest: +SKIP

    Args:
        function: A module or a function of torch, or the path of an ONNX model.
        **options: See :class:`tuner.jit.options.JitOptions`.

    Returns:
        A callable with ``cache_info``, ``cache_clear`` and ``refresh``.

    Raises:
        TypeError: If it is none of these.
        RequestError: If the file is no ONNX model.
    """
    from tuner.jit.jit import make
    from tuner.jit.options import JitOptions

    chosen = JitOptions(**options)
    if function is None:
        return lambda decorated: make(decorated, chosen)
    return make(function, chosen)

"""Make jitted functions from functions and modules of torch, and from ONNX files."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tuner.errors import install_command
from tuner.jit.options import JitOptions

if TYPE_CHECKING:
    from tuner.jit.onnx_function import OnnxFunction
    from tuner.jit.torch.torch_function import TorchFunction

Jitted: TypeAlias = "TorchFunction | OnnxFunction"


def make(function: Any, options: JitOptions) -> Jitted:
    """Make a jitted function; nothing is compiled yet.

    Raises:
        RequestError: If the file is not an ONNX model.
        TypeError: If it is neither a file nor a callable of torch.
    """
    if isinstance(function, str | os.PathLike):
        from tuner.jit.onnx_function import OnnxFunction

        return OnnxFunction(Path(function), options)
    if not callable(function):
        raise TypeError(
            "tuner.jit takes a function or a module of torch, or the path of an ONNX model, "
            f"not {type(function).__name__}"
        )
    return _torch(function, options)


def _torch(function: Callable[..., Any], options: JitOptions) -> "TorchFunction":
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"jitting a function needs the extra torch: {install_command('torch')}"
        ) from error
    from tuner.jit.torch.torch_function import TorchFunction

    if not isinstance(function, torch.nn.Module) and not hasattr(function, "__code__"):
        plain = getattr(function, "__func__", None)
        if plain is None or not hasattr(plain, "__code__"):
            raise TypeError(
                "tuner.jit takes Python functions, methods and modules, not "
                f"{type(function).__name__}: wrap it in a function"
            )
    return TorchFunction(function, options)

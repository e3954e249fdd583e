"""Make jitted functions from functions and modules of torch, and from ONNX files."""

import os
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
    try:
        from tuner.jit.torch.torch_function import TorchFunction
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"jitting a function needs the extra torch: {install_command('torch')}"
        ) from error
    return TorchFunction(function, options)

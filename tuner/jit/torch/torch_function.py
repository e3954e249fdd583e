"""Jitted functions of torch tensors."""

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from tuner.jit.options import JitOptions
from tuner.jit.signature_cache import CacheInfo
from tuner.jit.torch.torch_backend import Backend


class TorchFunction:
    """Calls a function that the backend ``tuner`` compiles; made by :func:`tuner.jit`."""

    def __init__(self, function: Callable[..., Any], options: JitOptions) -> None:
        def call(*args: Any, **named: Any) -> Any:
            return function(*args, **named)

        # Torch counts compilations by code object, so each jitted function has one of its own.
        call.__code__ = call.__code__.replace()
        self.name = options.name or _name_of(function)
        self._backend = Backend(options, self.name)
        self._compiled = torch.compile(call, backend=self._backend, fullgraph=options.strict)
        if not isinstance(function, torch.nn.Module):
            functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the result of the function, without gradients.

        Raises:
            ModelError, WorkError: If it cannot be compiled, and the options are strict.
        """
        with torch.no_grad():
            return self._compiled(*args, **named)

    def cache_info(self) -> CacheInfo:
        """Return the counts of calls and libraries."""
        return self._backend.cache.info()

    def cache_clear(self) -> None:
        """Drop all libraries from memory, and reset the counts; the build cache stays."""
        with self._backend.cache.lock:
            self._backend.cache.reset()

    def refresh(self) -> int:
        """Load the libraries of better records.

        Returns:
            Number of libraries that changed.

        Raises:
            ModelError, WorkError: If one cannot be built.
        """
        return self._backend.refresh()


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    return re.sub(r"\W+", "", str(getattr(function, "__name__", ""))) or "function"

"""Jitted functions of torch tensors."""

import functools
import tempfile
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch

from tuner.errors import WorkError
from tuner.runtime import forks, libraries
from tuner.runtime.agreement import TOLERANCE, disagreement
from tuner.runtime.libraries import Loaded
from tuner.runtime.memory import CacheInfo, Memory, Serving
from tuner.runtime.options import JitOptions
from tuner.runtime.torch_signatures import Signature, ready, split
from tuner.runtime.torch_tracing import Outputs, trace
from tuner.runtime.torch_watching import Watch, sources_of

Tensor = torch.Tensor
_HALF_TOLERANCE = 0.02


class TorchFunction:
    """Calls a library for each signature; made by :func:`tuner.jit`.

    Any thread may call it.
    """

    def __init__(self, function: Callable[..., Any], options: JitOptions) -> None:
        self._function = function
        self._options = options
        self.name = options.name or _name_of(function)
        self._sources = sources_of(function)
        self._watch: Watch | None = None
        self._memory: Memory[_Call] = Memory(options.maxsize, self.name)
        if not isinstance(function, torch.nn.Module):
            functools.update_wrapper(self, function)
        forks.watch(self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return what the function returns, from a library that is compiled if there is none.

        Raises:
            TypeError: If an argument is nothing a library can be given.
            RuntimeError: If a gradient would be lost.
            ModelError: If the function cannot be compiled.
            WorkError: If the compilation fails.
        """
        key: list[Hashable] = []
        for tensor in args:
            if type(tensor) is not Tensor:
                return self._call_slowly(args, named)
            key.append(tensor.shape)
            key.append(tensor.dtype)
        call = None if named else self._memory.find(tuple(key))
        if call is None or self._has_changed():
            return self._call_slowly(args, named)
        return call(args)

    def cache_info(self) -> CacheInfo:
        """Return how the libraries were got that were called."""
        return self._memory.info()

    def cache_clear(self) -> None:
        """Forget libraries and counts; the build cache keeps what it has."""
        with self._memory.lock:
            self._memory.reset()
            self._watch = None

    def refresh(self) -> int:
        """Look for better records, and serve by the libraries that they give.

        Returns:
            Libraries that changed.

        Raises:
            ModelError, WorkError: As a call.
        """
        with self._memory.lock:
            if self._has_changed():
                self._drop()
            n_changed = 0
            for _, call in self._memory.all():
                got = self._get(call.signature, unless=call.serving.loaded.digest)
                if got is not None:
                    self._memory.swap(call, got[0])
                    n_changed += 1
            return n_changed

    def forget(self) -> None:
        """Let go of everything in a process that was forked."""
        self._memory = Memory(self._options.maxsize, self.name)
        self._watch = None

    def _has_changed(self) -> bool:
        watch = self._watch
        return watch is None or watch.has_changed()

    def _call_slowly(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            # Part of another function that is being traced.
            return self._function(*args, **named)
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError(f"{self.name} is jitted, and cannot be called under autocast")
        signature, tensors = split(args, named)
        tensors = [ready(tensor) for tensor in tensors]
        call = None if self._has_changed() else self._memory.find(signature.key)
        if call is None:
            with self._memory.lock:
                if self._has_changed():
                    self._drop()
                call = self._memory.find(signature.key)
                if call is None:
                    return self._add(signature, tensors)
        return call(tensors)

    def _drop(self) -> None:
        self._memory.drop_all()
        self._watch = None

    def _add(self, signature: Signature, tensors: list[Any]) -> Any:
        """Compile a signature; return what its first call returns."""
        # What changes from here on is not in the library.
        watch = Watch(self._sources)
        got = self._get(signature)
        assert got is not None
        loaded, outputs, constants = got
        call = _Call(signature, Serving(loaded), outputs)
        result = call.try_out(tensors, self._eager(signature, tensors), self.name)
        self._memory.add(signature.key, call)
        if self._watch is None:
            self._watch = watch
        self._watch.add(constants)
        return result

    def _get(
        self, signature: Signature, unless: str = ""
    ) -> tuple[Loaded, Outputs, tuple[Any, ...]] | None:
        with tempfile.TemporaryDirectory(prefix="tuner-jit-") as folder:
            traced = trace(self._function, self._sources, signature, Path(folder))
            loaded = libraries.get(self._options, traced.path, self.name, {}, unless)
        return None if loaded is None else (loaded, traced.outputs, traced.constants)

    def _eager(self, signature: Signature, tensors: Sequence[Any]) -> list[Any]:
        args, named = signature.fill(tensors)
        with torch.no_grad():
            returned = self._function(*args, **named)
        leaves = torch.utils._pytree.tree_leaves(returned)
        return [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]


class _Call:
    """What serves one signature."""

    def __init__(self, signature: Signature, serving: Serving, outputs: Outputs) -> None:
        self.signature = signature
        self.serving = serving
        self._outputs = outputs
        self._is_tensor = outputs.is_tensor
        self._shared: tuple[int, ...] = ()

    def __call__(self, tensors: Sequence[Any]) -> Any:
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("a jitted function cannot be called under autocast")
        return self._finish(self.serving.run([ready(tensor) for tensor in tensors]))

    def try_out(self, tensors: Sequence[Any], expected: Sequence[Any], name: str) -> Any:
        """Call for the first time, and check what comes of it.

        Raises:
            WorkError: If the library computes something else than the function.
        """
        twice = [_listed(self.serving.try_out(tensors)) for _ in range(2)]
        # Two results that live, and are in one place: memory of the library, or of an input.
        self._shared = tuple(
            number
            for number, (one, other) in enumerate(zip(*twice, strict=True))
            if one.data_ptr() == other.data_ptr()
        )
        problem = _compare(twice[0], expected)
        if problem:
            raise WorkError(f"the library of {name} does not compute what {name} does: {problem}")
        return self._finish(twice[1])

    def _finish(self, returned: Any) -> Any:
        tensors = _listed(returned)
        for number in self._shared:
            tensors[number] = tensors[number].clone()
        return tensors[0] if self._is_tensor else self._outputs.assemble(tensors)


def _listed(returned: Any) -> list[Any]:
    return [returned] if isinstance(returned, Tensor) else list(returned)


def _compare(actual: Sequence[Any], expected: Sequence[Any]) -> str:
    halves = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in expected)
    for ours, theirs in zip(actual, expected, strict=False):
        if ours.dtype != theirs.dtype:
            return f"an output is {ours.dtype} instead of {theirs.dtype}"
    return disagreement(
        [_array(tensor) for tensor in actual],
        [_array(tensor) for tensor in expected],
        _HALF_TOLERANCE if halves else TOLERANCE,
    )


def _array(tensor: Any) -> Any:
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    return str(getattr(function, "__name__", "function"))

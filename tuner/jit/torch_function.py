"""Jitted functions of torch tensors."""

import functools
import re
import tempfile
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tuner.errors import WorkError
from tuner.jit import forks, libraries
from tuner.jit.agreement import TOLERANCE, disagreement
from tuner.jit.background import Wish, make_background
from tuner.jit.libraries import KeptFile, Loaded, is_better
from tuner.jit.memory import CacheInfo, Memory, Serving
from tuner.jit.options import JitOptions
from tuner.jit.torch_signatures import Signature, ready, split
from tuner.jit.torch_tracing import Outputs, Traced, alone, is_inside, trace
from tuner.jit.torch_watching import Reading, Readings, Watch, sources_of

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
        self._background = make_background(options)
        if not isinstance(function, torch.nn.Module):
            functools.update_wrapper(self, function, updated=())
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
            with alone():
                if self._has_changed():
                    self._drop()
            n_changed = 0
            for _, call in self._memory.all():
                traced = trace(self._function, self._sources, call.signature)
                got = self._get(traced, unless=call.serving.loaded.digest)
                if got is not None and is_better(got.loaded, call.serving.loaded):
                    call.learn_sharing(got.loaded)
                    self._memory.swap(call, got.loaded)
                    n_changed += 1
            return n_changed

    def forget(self) -> None:
        """Let go of everything in a process that was forked."""
        self._memory = Memory(self._options.maxsize, self.name)
        self._background = make_background(self._options)
        self._watch = None

    def _has_changed(self) -> bool:
        watch = self._watch
        return watch is None or watch.has_changed()

    def _call_slowly(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if is_inside() or _is_traced(args, named):
            # Part of another function, which is compiled whole.
            return self._function(*args, **named)
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError(f"{self.name} is jitted, and cannot be called under autocast")
        signature, tensors = split(args, named)
        tensors = [ready(tensor) for tensor in tensors]
        call = None if self._has_changed() else self._memory.find(signature.key)
        if call is None:
            with self._memory.lock:
                # In a trace the parts of a module are not what they are.
                with alone():
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
        with alone():
            watch = Watch(self._sources)
            traced = trace(self._function, self._sources, signature)
            expected, readings = self._run(signature, tensors)
        got = self._get(traced)
        assert got is not None
        call = _Call(signature, Serving(got.loaded), traced.outputs)
        call.learn_sharing(got.loaded)
        result = listed(call.serving.try_out(tensors))
        problem = compare(result, expected)
        if problem:
            raise WorkError(f"the library of {self.name} does not compute what it does: {problem}")
        self._memory.add(signature.key, call)
        self._watch = self._watch or watch
        self._watch.add(readings)
        if got.program is not None and self._background is not None:
            self._background.ask(self._wish(call, got.program, tensors, result))
        return call.finish(result)

    def _get(self, traced: Traced, unless: str = "") -> "_Got | None":
        with tempfile.TemporaryDirectory(prefix="tuner-jit-") as folder:
            path = traced.write(Path(folder))
            loaded = libraries.get(self._options, path, self.name, {}, unless)
            if loaded is None:
                return None
            keep = self._background is not None and loaded.n_fallbacks > 0
            return _Got(loaded, KeptFile(path) if keep else None)

    def _run(self, signature: Signature, tensors: Sequence[Any]) -> tuple[list[Any], list[Reading]]:
        """Call the function itself; return the tensors it returns, and what else it read."""
        args, named = signature.fill(tensors)
        with torch.no_grad(), Readings(tensors) as readings:
            returned = self._function(*args, **named)
        leaves = torch.utils._pytree.tree_leaves(returned)
        # A result may be an argument, which the caller may change before it is compared.
        return [leaf.clone() for leaf in leaves if isinstance(leaf, Tensor)], readings.outside

    def _wish(
        self, call: "_Call", program: KeptFile, tensors: Sequence[Any], result: Sequence[Any]
    ) -> Wish:
        """Ask for a better library, which has to give the same result for the same tensors."""
        examples = [tensor.clone() for tensor in tensors]
        expected = [tensor.clone() for tensor in result]

        def is_wanted() -> bool:
            is_served = any(call is other for _, other in self._memory.all())
            return is_served and not self._has_changed()

        def accept(loaded: Loaded) -> str:
            problem = compare(listed(Serving(loaded).try_out(examples)), expected)
            if problem:
                return problem
            with self._memory.lock:
                if is_wanted():
                    call.learn_sharing(loaded)
                    self._memory.swap(call, loaded)
            return ""

        def write_model(folder: Path) -> Path:
            out = folder / f"{self.name}.onnx"
            libraries.in_worker(
                self._options, "tuner.jit.torch_onnx", "convert", str(program.path), str(out)
            )
            return out

        return Wish(self.name, call.serving.loaded.manifest, {}, write_model, is_wanted, accept)


@dataclass(frozen=True)
class _Got:
    """A library of a signature; ``program`` only if it is to be tuned."""

    loaded: Loaded
    program: KeptFile | None


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
        return self.finish(self.serving.run([ready(tensor) for tensor in tensors]))

    def learn_sharing(self, loaded: Loaded) -> None:
        """Find out which outputs of a library lie in memory of its own, or in an input's.

        Two results that both live, and are in one place, are such.
        """
        serving = Serving(loaded)
        examples = [ready(tensor) for tensor in self.signature.examples()]
        one, other = (listed(serving.try_out(examples)) for _ in range(2))
        shared = {
            number
            for number, (ours, theirs) in enumerate(zip(one, other, strict=True))
            if ours.data_ptr() == theirs.data_ptr()
        }
        # Also what an older library shared: a copy too many is harmless.
        self._shared = tuple(sorted(shared | set(self._shared)))

    def finish(self, returned: Any) -> Any:
        """Make what the function returns of what the library returned."""
        tensors = listed(returned)
        for number in self._shared:
            tensors[number] = tensors[number].clone()
        return tensors[0] if self._is_tensor else self._outputs.assemble(tensors)


def listed(returned: Any) -> list[Any]:
    """Return the tensors of an answer; a library with one output may give that alone."""
    return [returned] if isinstance(returned, Tensor) else list(returned)


def compare(actual: Sequence[Any], expected: Sequence[Any]) -> str:
    """Say how tensors differ from what was expected; empty if they agree."""
    halves = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in expected)
    for ours, theirs in zip(actual, expected, strict=False):
        if ours.dtype != theirs.dtype:
            return f"an output is {ours.dtype} instead of {theirs.dtype}"
    return disagreement(
        [_array(tensor) for tensor in actual],
        [_array(tensor) for tensor in expected],
        _HALF_TOLERANCE if halves else TOLERANCE,
    )


def _is_traced(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether torch itself traces a function that calls this one, with tensors of its own kind."""
    return torch.compiler.is_compiling() and any(
        isinstance(leaf, Tensor) and type(leaf) not in (Tensor, torch.nn.Parameter)
        for leaf in torch.utils._pytree.tree_leaves((args, named))
    )


def _array(tensor: Any) -> Any:
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    return re.sub(r"\W+", "", str(getattr(function, "__name__", ""))) or "function"

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
from tuner.jit.background import TuningRequest, make_background_tuner
from tuner.jit.libraries import FileCopy, LoadedLibrary, is_better
from tuner.jit.options import JitOptions
from tuner.jit.signature_cache import CacheInfo, ServedLibrary, SignatureCache
from tuner.jit.torch.torch_changes import ChangeDetector, ReadRecorder, TensorState, dependencies_of
from tuner.jit.torch.torch_signatures import Signature, prepare, split_arguments
from tuner.jit.torch.torch_tracing import (
    OutputStructure,
    TracedProgram,
    exclusive_tracing,
    is_tracing,
    trace,
)
from tuner.process_folder import shared_folder

Tensor = torch.Tensor
_HALF_TOLERANCE = 0.02


class TorchFunction:
    """Calls a library for each signature; made by :func:`tuner.jit`, thread-safe."""

    def __init__(self, function: Callable[..., Any], options: JitOptions) -> None:
        self._function = function
        self._options = options
        self.name = options.name or _name_of(function)
        self._dependencies = dependencies_of(function)
        self._detector: ChangeDetector | None = None
        self._cache: SignatureCache[_Call] = SignatureCache(options.maxsize, self.name)
        self._background = make_background_tuner(options)
        if not isinstance(function, torch.nn.Module):
            functools.update_wrapper(self, function, updated=())
        forks.register_holder(self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the result of the function, computed by a library that is compiled if missing.

        Raises:
            TypeError: If a library cannot take an argument.
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
            key.append(tensor.is_cpu)
        call = None if named else self._cache.find(tuple(key))
        if call is None or self._has_changed():
            return self._call_slowly(args, named)
        return call(args)

    def cache_info(self) -> CacheInfo:
        """Return the counts of calls and libraries."""
        return self._cache.info()

    def cache_clear(self) -> None:
        """Drop all libraries from memory, and reset the counts; the build cache stays."""
        with self._cache.lock:
            self._cache.reset()
            self._detector = None

    def refresh(self) -> int:
        """Load the libraries of better records.

        Returns:
            Number of libraries that changed.

        Raises:
            ModelError, WorkError: As a call raises them.
        """
        with self._cache.lock:
            with exclusive_tracing():
                if self._has_changed():
                    self._drop()
            n_changed = 0
            for call in self._cache.calls():
                traced = trace(self._function, self._dependencies, call.signature)
                built = self._build(traced, call.signature, unless=call.served.loaded.digest)
                if built is not None and is_better(built.loaded, call.served.loaded):
                    call.learn_sharing(built.loaded)
                    self._cache.swap(call, built.loaded)
                    n_changed += 1
            return n_changed

    def forget(self) -> None:
        """Drop everything in a forked process."""
        self._cache = SignatureCache(self._options.maxsize, self.name)
        self._background = make_background_tuner(self._options)
        self._detector = None

    def _has_changed(self) -> bool:
        detector = self._detector
        return detector is None or detector.has_changed()

    def _call_slowly(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        # A trace of a function that calls this one has tensors of its own kind.
        if is_tracing() or (
            torch.compiler.is_compiling()
            and any(
                isinstance(leaf, Tensor) and type(leaf) not in (Tensor, torch.nn.Parameter)
                for leaf in torch.utils._pytree.tree_leaves((args, named))
            )
        ):
            # Part of another function, which is compiled as a whole.
            return self._function(*args, **named)
        signature, tensors = split_arguments(args, named)
        _check_autocast(signature)
        tensors = [prepare(tensor) for tensor in tensors]
        call = None if self._has_changed() else self._cache.find(signature.key)
        if call is None:
            with self._cache.lock:
                # During a trace of another thread, the parts of a module are replaced.
                with exclusive_tracing():
                    if self._has_changed():
                        self._drop()
                call = self._cache.find(signature.key)
                if call is None:
                    return self._add(signature, tensors)
        return call(tensors)

    def _drop(self) -> None:
        self._cache.drop_all()
        self._detector = None

    def _add(self, signature: Signature, tensors: list[Any]) -> Any:
        """Compile a signature; return the result of its first call."""
        # The library does not reflect changes after this line.
        with exclusive_tracing():
            detector = ChangeDetector(self._dependencies)
            traced = trace(self._function, self._dependencies, signature)
            expected, states = self._run(signature, tensors)
        built = self._build(traced, signature)
        assert built is not None
        call = _Call(signature, ServedLibrary(built.loaded), traced.outputs)
        call.learn_sharing(built.loaded)
        result = call.try_out(call.served, tensors)
        problem = compare(result, expected)
        if problem:
            raise WorkError(f"the library of {self.name} computes another result: {problem}")
        self._cache.add(signature.key, call)
        self._detector = self._detector or detector
        self._detector.add(states)
        if built.program is not None and self._background is not None:
            request = self._tuning_request(call, built.program, tensors, result)
            self._background.submit(request)
        return call.finish(result)

    def _build(
        self, traced: TracedProgram, signature: Signature, unless: str = ""
    ) -> "_Built | None":
        kind = "cuda" if signature.on_gpu else "llvm"
        with tempfile.TemporaryDirectory(prefix="jit-", dir=shared_folder()) as folder:
            path = traced.write(Path(folder))
            loaded = libraries.build_and_load(self._options, path, self.name, {}, unless, kind)
            if loaded is None:
                return None
            keep = self._background is not None and loaded.n_fallbacks > 0
            return _Built(loaded, FileCopy(path) if keep else None)

    def _run(
        self, signature: Signature, tensors: Sequence[Any]
    ) -> tuple[list[Any], list[TensorState]]:
        """Call the function itself; return its tensors, and the other tensors that it read."""
        args, named = signature.fill(tensors)
        with torch.no_grad(), ReadRecorder(tensors) as recorder:
            returned = self._function(*args, **named)
        leaves = torch.utils._pytree.tree_leaves(returned)
        # A result may be an argument, which the caller may change before it is compared.
        return [leaf.clone() for leaf in leaves if isinstance(leaf, Tensor)], recorder.states

    def _tuning_request(
        self, call: "_Call", program: FileCopy, tensors: Sequence[Any], result: Sequence[Any]
    ) -> TuningRequest:
        """Request a better library, which must return the same result for the same tensors."""
        examples = [tensor.clone() for tensor in tensors]
        expected = [tensor.clone() for tensor in result]

        def is_current() -> bool:
            is_served = any(call is other for other in self._cache.calls())
            return is_served and not self._has_changed()

        def accept(loaded: LoadedLibrary) -> str:
            problem = compare(call.try_out(ServedLibrary(loaded), examples), expected)
            if problem:
                return problem
            with self._cache.lock:
                if is_current():
                    call.learn_sharing(loaded)
                    self._cache.swap(call, loaded)
            return ""

        def write_model(folder: Path) -> Path:
            out = folder / f"{self.name}.onnx"
            libraries.call_in_worker(
                self._options, "tuner.jit.torch.torch_onnx", "convert", str(program.path), str(out)
            )
            return out

        manifest = call.served.loaded.manifest
        return TuningRequest(self.name, manifest, {}, write_model, is_current, accept)


@dataclass(frozen=True)
class _Built:
    """A library of a signature, and its program if a service should tune it."""

    loaded: LoadedLibrary
    program: FileCopy | None


class _Call:
    """A call with one signature."""

    def __init__(
        self, signature: Signature, served: ServedLibrary, outputs: OutputStructure
    ) -> None:
        self.signature = signature
        self.served = served
        self._outputs = outputs
        self._is_tensor = outputs.is_tensor
        self._shared: tuple[int, ...] = ()

    def __call__(self, tensors: Sequence[Any]) -> Any:
        _check_autocast(self.signature)
        prepared = [prepare(tensor) for tensor in tensors]
        return self.finish(self.served.run(prepared, self._new_outputs(self.served)))

    def try_out(self, served: ServedLibrary, tensors: Sequence[Any]) -> list[Any]:
        """Call a library for the signature without counting the call."""
        return as_list(served.try_out(tensors, self._new_outputs(served)))

    def _new_outputs(self, served: ServedLibrary) -> list[Any]:
        """Return memory for the outputs on a GPU, of torch, which the results keep."""
        if not served.on_gpu:
            return []
        specs, device = self._outputs.specs, self.signature.device
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in specs]

    def learn_sharing(self, loaded: LoadedLibrary) -> None:
        """Determine the outputs of a library that lie in its own memory, or in that of an input.

        These are the outputs that two calls return at the same address.
        """
        served = ServedLibrary(loaded)
        examples = [prepare(tensor) for tensor in self.signature.examples()]
        first, second = (self.try_out(served, examples) for _ in range(2))
        shared = {
            number
            for number, (one, other) in enumerate(zip(first, second, strict=True))
            if one.data_ptr() == other.data_ptr()
        }
        # Outputs that an older library shared stay: an unneeded copy is harmless.
        self._shared = tuple(sorted(shared | set(self._shared)))

    def finish(self, returned: Any) -> Any:
        """Return the result of the function from that of the library."""
        tensors = as_list(returned)
        for number in self._shared:
            tensors[number] = tensors[number].clone()
        return tensors[0] if self._is_tensor else self._outputs.assemble(tensors)


def as_list(returned: Any) -> list[Any]:
    """Return the tensors of a result; a library may return a single output by itself."""
    return [returned] if isinstance(returned, Tensor) else list(returned)


def compare(actual: Sequence[Any], expected: Sequence[Any]) -> str:
    """Return how tensors differ from the expected ones; empty if they agree."""
    has_halves = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in expected)
    for left, right in zip(actual, expected, strict=False):
        if left.dtype != right.dtype:
            return f"an output is {left.dtype} instead of {right.dtype}"
    return disagreement(
        [_array(tensor) for tensor in actual],
        [_array(tensor) for tensor in expected],
        _HALF_TOLERANCE if has_halves else TOLERANCE,
    )


def _array(tensor: Any) -> Any:
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()


def _check_autocast(signature: Signature) -> None:
    """Check that torch would not compute the function in another precision.

    Raises:
        RuntimeError: If it would.
    """
    if torch.is_autocast_enabled("cuda" if signature.on_gpu else "cpu"):
        raise RuntimeError("a jitted function cannot be called under autocast")


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    return re.sub(r"\W+", "", str(getattr(function, "__name__", ""))) or "function"

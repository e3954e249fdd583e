"""Jitted ONNX models with dynamic shapes, called on numpy arrays."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import ModelError
from tuner.jit import forks, libraries
from tuner.jit.agreement import TOLERANCE, disagreement
from tuner.jit.background import TuningRequest, make_background_tuner
from tuner.jit.libraries import LoadedLibrary, is_better
from tuner.jit.options import JitOptions
from tuner.jit.signature_cache import CacheInfo, ServedLibrary, SignatureCache

Array = np.ndarray[Any, Any]


class OnnxFunction:
    """Calls a library for each set of input shapes; made by :func:`tuner.jit`, thread-safe.

    The file is read again for each new set of shapes; if it has changed, all libraries are dropped.
    """

    def __init__(self, path: Path, options: JitOptions) -> None:
        self._path = path
        self._options = options
        self.name = options.name or path.stem
        self.inputs = _read_inputs(path)
        self._state = _state_of(path)
        self._cache: SignatureCache[_Call] = SignatureCache(options.maxsize, self.name)
        self._background = make_background_tuner(options)
        forks.register_holder(self)

    def __call__(self, *args: Array, **named: Array) -> dict[str, Array]:
        """Run the model on arrays, by position or by name; returns arrays by output name.

        Raises:
            TypeError: If an input is missing, given twice, unknown, or not an array of its dtype.
            ModelError: If the model does not take these shapes, or cannot be compiled.
            WorkError: If the compilation fails.
        """
        arrays = self._bind(args, named)
        key = tuple(array.shape for array in arrays.values())
        call = self._cache.find(key)
        if call is None:
            with self._cache.lock:
                call = self._cache.find(key)
                if call is None:
                    return self._add(key, arrays)
        return call(arrays)

    def cache_info(self) -> CacheInfo:
        """Return the counts of calls and libraries."""
        return self._cache.info()

    def cache_clear(self) -> None:
        """Drop all libraries from memory, and reset the counts; the build cache stays."""
        with self._cache.lock:
            self._cache.reset()

    def refresh(self) -> int:
        """Load the libraries of better records; return the number of libraries that changed."""
        with self._cache.lock:
            n_changed = 0
            for call in self._cache.calls():
                loaded = self._get(call.shapes, unless=call.served.loaded.digest)
                if loaded is not None and is_better(loaded, call.served.loaded):
                    self._cache.swap(call, loaded)
                    n_changed += 1
            return n_changed

    def forget(self) -> None:
        """Drop everything in a forked process."""
        self._cache = SignatureCache(self._options.maxsize, self.name)
        self._background = make_background_tuner(self._options)

    def _bind(self, args: tuple[Array, ...], named: Mapping[str, Array]) -> dict[str, Array]:
        if len(args) > len(self.inputs):
            raise TypeError(f"{self.name} takes {len(self.inputs)} inputs, got {len(args)}")
        given = dict(zip(self.inputs, args, strict=False))
        for name, array in named.items():
            if name not in self.inputs or name in given:
                problem = "is given twice" if name in given else "is unknown"
                raise TypeError(f"input {name!r} {problem}; inputs are {', '.join(self.inputs)}")
            given[name] = array
        for name, dtype in self.inputs.items():
            if name not in given:
                raise TypeError(f"input {name!r} is missing")
            given_dtype = getattr(given[name], "dtype", None)
            if not isinstance(given[name], np.ndarray) or given_dtype != dtype:
                raise TypeError(
                    f"input {name!r} must be an array of {dtype}, got "
                    f"{given_dtype or type(given[name]).__name__}"
                )
        return {name: given[name] for name in self.inputs}

    def _add(self, key: Hashable, arrays: dict[str, Array]) -> dict[str, Array]:
        state = _state_of(self._path)
        if state != self._state:
            self._cache.drop(lambda _: True)
            self._state = state
        shapes = {name: array.shape for name, array in arrays.items()}
        loaded = self._get(shapes)
        assert loaded is not None
        call = _Call(shapes, ServedLibrary(loaded))
        self._cache.add(key, call)
        result = loaded.library(arrays)
        if self._background is not None and loaded.n_fallbacks:
            self._background.submit(self._tuning_request(call, arrays, result))
        return result

    def _tuning_request(
        self, call: "_Call", arrays: Mapping[str, Array], result: Mapping[str, Array]
    ) -> TuningRequest:
        """Request a better library, which must return the same result for the same arrays."""
        examples = {name: array.copy() for name, array in arrays.items()}
        expected = [array.copy() for array in result.values()]

        def is_current() -> bool:
            is_served = any(call is other for other in self._cache.calls())
            return is_served and _state_of(self._path) == self._state

        def accept(loaded: LoadedLibrary) -> str:
            problem = disagreement([*loaded.library(examples).values()], expected, TOLERANCE)
            if not problem:
                with self._cache.lock:
                    if is_current():
                        self._cache.swap(call, loaded)
            return problem

        manifest = call.served.loaded.manifest
        shapes = dict(call.shapes)
        return TuningRequest(self.name, manifest, shapes, lambda _: self._path, is_current, accept)

    def _get(self, shapes: Mapping[str, tuple[int, ...]], unless: str = "") -> LoadedLibrary | None:
        return libraries.build_and_load(self._options, self._path, self.name, shapes, unless)


class _Call:
    """A call with one set of shapes."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], served: ServedLibrary) -> None:
        self.shapes = shapes
        self.served = served

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return self.served.run_arrays(arrays)


def _read_inputs(path: Path) -> dict[str, np.dtype[Any]]:
    """Return the dtype of each input, in the order of the model."""
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # of protobuf, or of the system
        raise ModelError(f"cannot read {str(path)!r}: {error}", code="unreadable-file") from error
    weights = {weight.name for weight in model.graph.initializer}
    return {
        value.name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        for value in model.graph.input
        if value.name not in weights
    }


def _state_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size

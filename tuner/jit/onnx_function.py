"""Jitted ONNX models with dynamic shapes: arrays in, arrays out."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import ModelError
from tuner.jit import forks, libraries
from tuner.jit.agreement import TOLERANCE, disagreement
from tuner.jit.background import Wish, make_background
from tuner.jit.libraries import Loaded, is_better
from tuner.jit.memory import CacheInfo, Memory, Serving
from tuner.jit.options import JitOptions

Array = np.ndarray[Any, Any]


class OnnxFunction:
    """Calls a library for each set of input shapes; made by :func:`tuner.jit`.

    Any thread may call it. The file is read when there are new shapes; one that changed
    meanwhile makes all libraries obsolete.
    """

    def __init__(self, path: Path, options: JitOptions) -> None:
        self._path = path
        self._options = options
        self.name = options.name or path.stem
        self.inputs = _read_inputs(path)
        self._state = _state_of(path)
        self._memory: Memory[_Call] = Memory(options.maxsize, self.name)
        self._background = make_background(options)
        forks.watch(self)

    def __call__(self, *args: Array, **named: Array) -> dict[str, Array]:
        """Run the model on arrays, by position or by name; returns arrays by output name.

        Raises:
            TypeError: If an input is missing, given twice, unknown, or no array of its dtype.
            ModelError: If the model has no such shapes, or cannot be compiled.
            WorkError: If the compilation fails.
        """
        arrays = self._bind(args, named)
        key = tuple(array.shape for array in arrays.values())
        call = self._memory.find(key)
        if call is None:
            with self._memory.lock:
                call = self._memory.find(key)
                if call is None:
                    return self._add(key, arrays)
        return call(arrays)

    def cache_info(self) -> CacheInfo:
        """Return how the libraries were got that were called."""
        return self._memory.info()

    def cache_clear(self) -> None:
        """Forget libraries and counts; the build cache keeps what it has."""
        with self._memory.lock:
            self._memory.reset()

    def refresh(self) -> int:
        """Look for better records; see :meth:`TorchFunction.refresh`."""
        with self._memory.lock:
            n_changed = 0
            for _, call in self._memory.all():
                loaded = self._get(call.shapes, unless=call.serving.loaded.digest)
                if loaded is not None and is_better(loaded, call.serving.loaded):
                    self._memory.swap(call, loaded)
                    n_changed += 1
            return n_changed

    def forget(self) -> None:
        """Let go of everything in a process that was forked."""
        self._memory = Memory(self._options.maxsize, self.name)
        self._background = make_background(self._options)

    def _bind(self, args: tuple[Array, ...], named: Mapping[str, Array]) -> dict[str, Array]:
        if len(args) > len(self.inputs):
            raise TypeError(f"{self.name} takes {len(self.inputs)} inputs, got {len(args)}")
        given = dict(zip(self.inputs, args, strict=False))
        for name, array in named.items():
            if name not in self.inputs or name in given:
                said = "is given twice" if name in given else "is unknown"
                raise TypeError(f"input {name!r} {said}; inputs are {', '.join(self.inputs)}")
            given[name] = array
        for name, dtype in self.inputs.items():
            if name not in given:
                raise TypeError(f"input {name!r} is missing")
            found = getattr(given[name], "dtype", None)
            if not isinstance(given[name], np.ndarray) or found != dtype:
                raise TypeError(
                    f"input {name!r} is to be an array of {dtype}, got "
                    f"{found or type(given[name]).__name__}"
                )
        return {name: given[name] for name in self.inputs}

    def _add(self, key: Hashable, arrays: dict[str, Array]) -> dict[str, Array]:
        state = _state_of(self._path)
        if state != self._state:
            self._memory.drop_all()
            self._state = state
        shapes = {name: array.shape for name, array in arrays.items()}
        loaded = self._get(shapes)
        assert loaded is not None
        call = _Call(shapes, Serving(loaded))
        self._memory.add(key, call)
        result = loaded.library(arrays)
        if self._background is not None and loaded.n_fallbacks:
            self._background.ask(self._wish(call, arrays, result))
        return result

    def _wish(
        self, call: "_Call", arrays: Mapping[str, Array], result: Mapping[str, Array]
    ) -> Wish:
        """Ask for a better library, which has to give the same result for the same arrays."""
        examples = {name: array.copy() for name, array in arrays.items()}
        expected = [array.copy() for array in result.values()]

        def is_wanted() -> bool:
            is_served = any(call is other for _, other in self._memory.all())
            return is_served and _state_of(self._path) == self._state

        def accept(loaded: Loaded) -> str:
            problem = disagreement([*loaded.library(examples).values()], expected, TOLERANCE)
            if not problem:
                with self._memory.lock:
                    if is_wanted():
                        self._memory.swap(call, loaded)
            return problem

        manifest = call.serving.loaded.manifest
        shapes = dict(call.shapes)
        return Wish(self.name, manifest, shapes, lambda _: self._path, is_wanted, accept)

    def _get(self, shapes: Mapping[str, tuple[int, ...]], unless: str = "") -> Loaded | None:
        return libraries.get(self._options, self._path, self.name, shapes, unless)


class _Call:
    """What serves one set of shapes."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], serving: Serving) -> None:
        self.shapes = shapes
        self.serving = serving

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return self.serving.run_arrays(arrays)


def _read_inputs(path: Path) -> dict[str, np.dtype[Any]]:
    """Return the dtype of each input, in the order of the model."""
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's, the system's
        raise ModelError(f"cannot read {str(path)!r}: {error}") from error
    weights = {each.name for each in model.graph.initializer}
    return {
        each.name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type))
        for each in model.graph.input
        if each.name not in weights
    }


def _state_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size

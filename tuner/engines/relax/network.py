"""Load and run built libraries."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tuner.engines.base import NetworkRun
from tuner.library import manifest

Array = np.ndarray[Any, Any]


class Library:
    """A compiled network, callable on arrays by input name.

    Attributes:
        inputs: Shape and dtype by input name.
        outputs: Names of the outputs, in order.
    """

    def __init__(self, folder: Path) -> None:
        described = manifest.read(folder)
        manifest.verify(folder, described)
        self.inputs = described.inputs
        self.outputs = tuple(described.outputs)
        self._vm = relax.VirtualMachine(
            tvm.runtime.load_module(str(folder / manifest.LIBRARY)), tvm.cpu()
        )

    def __call__(
        self, inputs: Mapping[str, Array] | None = None, **named: Array
    ) -> dict[str, Array]:
        """Run the network.

        Args:
            inputs: An array per input name, of the shapes and dtypes in :attr:`inputs`.
            **named: The same, as keywords.

        Returns:
            An array per output name.

        Raises:
            ValueError: If an input is missing, unknown, or of another shape or dtype.
        """
        return self.fetch(self.run(self.place({**(inputs or {}), **named})))

    def place(self, inputs: Mapping[str, Array]) -> list[Any]:
        """Check the inputs and put them on the device, in the order the network takes them."""
        unknown = sorted(set(inputs) - set(self.inputs))
        if unknown:
            raise ValueError(f"unknown input {unknown[0]!r}; inputs are {', '.join(self.inputs)}")
        return [self._place(name, inputs.get(name)) for name in self.inputs]

    def run(self, placed: Sequence[Any]) -> Any:
        """Run on placed inputs; returns device tensors."""
        return self._vm["main"](*placed)

    def fetch(self, returned: Any) -> dict[str, Array]:
        """Copy device tensors back, by output name."""
        tensors = [returned] if hasattr(returned, "numpy") else list(returned)
        return {name: t.numpy() for name, t in zip(self.outputs, tensors, strict=True)}

    def _place(self, name: str, array: Array | None) -> Any:
        shape, dtype = self.inputs[name]
        if array is None:
            raise ValueError(f"input {name!r} of shape {shape} and dtype {dtype} is missing")
        if not hasattr(array, "dtype") or not hasattr(array, "shape"):
            raise ValueError(f"input {name!r} must be an array, got {type(array).__name__}")
        if tuple(array.shape) != shape or str(array.dtype) != dtype:
            raise ValueError(
                f"input {name!r} must have shape {shape} and dtype {dtype}, "
                f"got {tuple(array.shape)} and {array.dtype}"
            )
        return tvm.runtime.tensor(np.ascontiguousarray(array), tvm.cpu())


def run_network(request: NetworkRun) -> tuple[float, ...]:
    """Run a library and time it; see :class:`Engine`."""
    library = _load(request.library)
    with np.load(request.inputs) as stored:
        placed = library.place({name: stored[name] for name in library.inputs})
    for _ in range(2):
        returned = library.run(placed)
    if request.outputs:
        np.savez(request.outputs, **library.fetch(returned))  # type: ignore[arg-type]
    return tuple(_time(library, placed) for _ in range(request.n_runs))


_loaded: dict[str, Library] = {}


def _load(folder: str) -> Library:
    """Load a library once a process, so that turns of a comparison find it warm."""
    if folder not in _loaded:
        _loaded[folder] = Library(Path(folder))
    return _loaded[folder]


def _time(library: Library, placed: Sequence[Any]) -> float:
    start = time.perf_counter()
    library.run(placed)
    return time.perf_counter() - start
